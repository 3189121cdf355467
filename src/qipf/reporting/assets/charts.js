"use strict";
// Charts: boxes to choose a view, switches for the series, and a readout by pointer or arrow keys.

// Widths of charts on paper, in pixels: two stand side by side, unless their points have names.
page.PRINTED = { small: 330, wide: 680 };

page.Chart = class {
  constructor(figure) {
    this.figure = figure;
    this.spec = page.data(figure);
    this.shown = new Set(this.spec.shown);
    this.plot = figure.querySelector(".plot");
    this.place = -1;
    this.plot.innerHTML = `${this.boxes()}${this.switches()}<p class="view-title"></p><div class="stage"></div><div class="readout" role="status" aria-live="polite" hidden></div>`;
    this.stage = this.plot.querySelector(".stage");
    this.readout = this.plot.querySelector(".readout");
    this.listen();
    this.draw();
    new ResizeObserver(() => {
      if (Math.abs(this.stage.clientWidth - this.width) > 1) this.draw();
    }).observe(this.stage);
  }

  boxes() {
    const box = ({ label, options }) => `<label${options.length === 1 ? " hidden" : ""}>${page.escape(label)} <select>` +
      options.map(([key, text]) => `<option value="${page.escape(key)}">${page.escape(text)}</option>`).join("") +
      "</select></label>";
    const { choices } = this.spec;
    return choices.length ? `<div class="choices">${choices.map(box).join("")}</div>` : "";
  }

  switches() {
    const { names, looks, presets } = this.spec;
    const fixed = Object.keys(looks).filter((name) => !names.includes(name));
    const named = Object.values(this.spec.views).every((view) => view.kind === "points");
    if (named || names.length + fixed.length < 2) return ""; // points have their names beside them
    const one = (name) => `<label data-name="${page.escape(name)}"><input type="checkbox" value="${page.escape(name)}"${this.shown.has(name) ? " checked" : ""}>${page.swatch(looks[name])}<span>${page.escape(name)}</span></label>`;
    const mark = (name) => `<span class="fixed">${page.swatch(looks[name], true)}${page.escape(name)}</span>`;
    const buttons = presets.map(([label], i) => `<button type="button" data-preset="${i}">${page.escape(label)}</button>`);
    return `<fieldset class="switches"><legend>Shown</legend>${buttons.length ? `<div class="presets">${buttons.join("")}</div>` : ""}${names.map(one).join("")}${fixed.map(mark).join("")}</fieldset>`;
  }

  listen() {
    const every = (selector, kind, act) =>
      this.plot.querySelectorAll(selector).forEach((e) => e.addEventListener(kind, act));
    every("select", "change", () => this.draw());
    every(".switches input", "change", (event) => {
      this.shown[event.target.checked ? "add" : "delete"](event.target.value);
      this.draw();
    });
    every("[data-preset]", "click", (event) => this.preset(Number(event.target.dataset.preset)));
    for (const kind of ["pointerenter", "focusin"]) {
      every(".switches label", kind, (event) => this.fade(event.currentTarget.dataset.name));
    }
    for (const kind of ["pointerleave", "focusout"]) every(".switches label", kind, () => this.fade(null));
    this.stage.addEventListener("pointermove", (event) => this.point(event));
    this.stage.addEventListener("pointerdown", (event) => this.point(event));
    this.stage.addEventListener("pointerleave", () => this.read(-1));
    this.stage.addEventListener("keydown", (event) => this.key(event));
    this.stage.addEventListener("focusout", () => this.read(-1));
  }

  preset(index) {
    this.shown = new Set(this.spec.presets[index][1]);
    this.plot.querySelectorAll(".switches input").forEach((input) => { input.checked = this.shown.has(input.value); });
    this.draw();
  }

  draw() {
    const key = [...this.plot.querySelectorAll("select")].map((s) => s.value).join("|");
    const view = this.spec.views[key];
    this.place = -1;
    this.readout.hidden = true;
    this.width = this.stage.clientWidth || 640;
    this.plot.querySelector(".view-title").textContent = view ? view.title : "";
    if (!view) {
      this.places = [];
      this.stage.innerHTML = '<p class="note">This was not measured.</p>';
      return;
    }
    this.view = view;
    Object.assign(this, page.draw(view, this.spec.looks, this.shown, this.width, this.spec.alt));
    this.stage.innerHTML = this.svg;
    this.places = this.stops();
  }

  // Where the readout can stand: pixels from the left, what is written first, and lines below.
  stops() {
    const { frame, visible, view } = this;
    if (view.kind === "points") {
      return visible.map((s) => ({
        px: frame.x(s.x[0]), py: frame.y(s.y[0]), head: s.name, rows: [
          { name: view.x.label, text: page.format(s.x[0]) }, { name: view.y.label, text: page.format(s.y[0]) }],
      }));
    }
    const bars = view.kind === "histogram";
    const xs = [...new Set(visible.flatMap((s) => (bars ? s.x.slice(0, -1) : s.x)))].sort((a, b) => a - b);
    return xs.map((x) => {
      const rows = visible.map((s) => ({ name: s.name, fixed: s.fixed, value: s.y[s.x.indexOf(x)] ?? null }))
        .filter((row) => row.value !== null).sort((a, b) => b.value - a.value)
        .map((row) => ({ name: row.name, text: page.format(row.value), swatch: page.swatch(this.spec.looks[row.name], row.fixed) }));
      const next = bars ? visible[0].x[visible[0].x.indexOf(x) + 1] : x;
      const head = bars ? `${page.format(x)} to ${page.format(next)}` : `${view.x.label}: ${page.format(x)}`;
      return { px: (frame.x(x) + frame.x(next)) / 2, head, rows };
    });
  }

  point(event) {
    const scale = this.width / this.stage.clientWidth;
    const edge = this.stage.getBoundingClientRect();
    const [x, y] = [(event.clientX - edge.left) * scale, (event.clientY - edge.top) * scale];
    const far = (p) => (p.py === undefined ? Math.abs(p.px - x) : Math.hypot(p.px - x, p.py - y));
    let best = -1;
    this.places.forEach((p, i) => { if (best < 0 || far(p) < far(this.places[best])) best = i; });
    this.read(best);
  }

  key(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === "Escape") this.read(-1);
    if (step === undefined || !this.places.length) return;
    event.preventDefault();
    this.read(Math.max(0, Math.min(this.places.length - 1, this.place + step)));
  }

  read(index) {
    if (index === this.place) return;
    this.place = index;
    const stop = this.places[index];
    this.readout.hidden = !stop;
    const cursor = this.stage.querySelector(".cursor");
    if (cursor) {
      const { box } = this.frame;
      cursor.setAttribute("d", stop ? `M${stop.px.toFixed(1)} ${box.top}V${box.bottom}` : "");
    }
    if (!stop) return;
    this.readout.innerHTML = `<strong>${page.escape(stop.head)}</strong>` + stop.rows.map((row) =>
      `<span>${row.swatch ?? ""}${page.escape(row.name)}</span><b>${row.text}</b>`).join("");
    this.readout.classList.toggle("below", this.frame.narrow);
    this.readout.style.top = `${this.stage.offsetTop + 8}px`;
    const right = stop.px < this.width / 2;
    this.readout.style.left = right ? `${stop.px + 14}px` : "auto";
    this.readout.style.right = right ? "auto" : `${this.width - stop.px + 14}px`;
  }

  // On paper nothing can be chosen: every view is drawn, small; with several boxes the last keeps
  // what is chosen in it, or there would be hundreds, unless the chart wants all.
  spread() {
    const boxes = [...this.plot.querySelectorAll("select")];
    const kept = boxes.length > 1 && !this.spec.printAll ? boxes.at(-1).value : null;
    const keys = Object.keys(this.spec.views).filter((key) => kept === null || key.split("|").at(-1) === kept);
    if (keys.length < 2) return;
    const one = (key) => {
      const view = this.spec.views[key];
      const size = view.kind === "points" ? "wide" : "small";
      const { svg } = page.draw(view, this.spec.looks, this.shown, page.PRINTED[size], this.spec.alt);
      return `<div class="${size}"><p class="view-title">${page.escape(view.title)}</p>${svg}</div>`;
    };
    this.stage.insertAdjacentHTML("afterend", `<div class="printed">${keys.map(one).join("")}</div>`);
    this.figure.classList.add("spread");
    this.figure.classList.toggle("whole", kept === null);
  }

  gather() {
    this.plot.querySelector(".printed")?.remove();
    this.figure.classList.remove("spread", "whole");
  }

  fade(name) {
    const known = name !== null && this.shown.has(name);
    this.stage.querySelectorAll(".series").forEach((g) => g.classList.toggle("faded", known && g.dataset.name !== name));
  }
};

page.charts = [...document.querySelectorAll("figure[data-chart]")].map((figure) => new page.Chart(figure));
addEventListener("beforeprint", () => page.charts.forEach((chart) => chart.spread()));
addEventListener("afterprint", () => page.charts.forEach((chart) => chart.gather()));
