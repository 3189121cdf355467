"use strict";
// Tables sorted by their headers, and boxes that choose which of several blocks is shown.

page.sortKey = (row, column) => {
  const cell = row.cells[column];
  const key = cell.dataset.key;
  if (key !== undefined) return Number(key);
  const text = cell.textContent.trim();
  return text === "–" ? null : text;
};

// Numbers by size, texts by alphabet, what is missing last whichever way it goes.
page.compare = (a, b, way) => {
  if (a === null || b === null) return (a === null) - (b === null);
  if (typeof a === "number" && typeof b === "number") return way * (a - b);
  return way * String(a).localeCompare(String(b), "en", { numeric: true });
};

page.sortBy = (table, column) => {
  const head = table.tHead.rows[0].cells[column];
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const numbers = rows.some((row) => typeof page.sortKey(row, column) === "number");
  const before = head.getAttribute("aria-sort");
  // numbers start with the highest: that is what one looks for
  const first = numbers ? "descending" : "ascending";
  const way = before === null ? first : before === "ascending" ? "descending" : "ascending";
  [...table.tHead.rows[0].cells].forEach((cell) => cell.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", way);
  const sign = way === "ascending" ? 1 : -1;
  rows.sort((a, b) => page.compare(page.sortKey(a, column), page.sortKey(b, column), sign));
  body.append(...rows);
};

document.querySelectorAll("table.sortable").forEach((table) => {
  [...table.tHead.rows[0].cells].forEach((cell, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = cell.textContent;
    button.title = "Sort by this column";
    button.addEventListener("click", () => page.sortBy(table, column));
    cell.replaceChildren(button);
  });
});

document.querySelectorAll("[data-views]").forEach((views) => {
  const boxes = [...views.querySelectorAll(":scope > .choices select")];
  const show = () => {
    const key = boxes.map((box) => box.value).join("|");
    views.querySelectorAll(":scope > [data-key]").forEach((block) => { block.hidden = block.dataset.key !== key; });
  };
  boxes.forEach((box) => box.addEventListener("change", show));
  show();
});

// Names of methods tell what they are: by a tooltip, from the list on the page.
page.terms = new Map([...document.querySelectorAll("#methods-explained .facts > div")].map((pair) =>
  [pair.querySelector("dt").textContent, pair.querySelector("dd").textContent]));
page.explain = (root) => root.querySelectorAll("tbody th, .switches label span").forEach((name) => {
  const text = page.terms.get(name.textContent.trim());
  if (text) { name.title = text; name.dataset.term = ""; }
});
page.explain(document);
