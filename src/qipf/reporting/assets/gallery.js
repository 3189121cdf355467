"use strict";
// The gallery: one slider turns the corruption up on all sample images; one image in detail.

page.Gallery = class {
  constructor(root) {
    this.root = root;
    this.data = page.data(root);
    this.image = 0;
    const boxes = (label, name) => `<label>${label} <select data-part="${name}"></select></label>`;
    root.insertAdjacentHTML("beforeend",
      `<div class="choices">${boxes("Network", "network")}${boxes("Corruption", "corruption")}</div>` +
      `<div class="slider"><label for="gallery-level">Severity</label><input id="gallery-level" type="range" min="0" step="1"><output for="gallery-level"></output></div>` +
      '<div class="thumbs" role="group" aria-label="Sample images"></div><div class="detail"></div>');
    this.part = (name) => root.querySelector(`[data-part="${name}"]`);
    this.slider = root.querySelector("input[type='range']");
    this.fill(this.part("network"), Object.keys(this.data.networks));
    this.part("network").addEventListener("change", () => this.enterNetwork());
    this.part("corruption").addEventListener("change", () => this.enterCorruption());
    this.slider.addEventListener("input", () => this.show());
    this.enterNetwork();
  }

  fill(select, names) {
    select.parentElement.hidden = names.length === 1;
    select.innerHTML = names.map((name) => `<option>${page.escape(name)}</option>`).join("");
  }

  enterNetwork() {
    this.network = this.data.networks[this.part("network").value];
    const names = Object.keys(this.network.corruptions);
    const kept = this.part("corruption").value;
    this.fill(this.part("corruption"), names);
    if (names.includes(kept)) this.part("corruption").value = kept;
    this.image = Math.min(this.image, this.network.truth.length - 1);
    this.enterCorruption();
  }

  enterCorruption() {
    this.shown = this.network.corruptions[this.part("corruption").value];
    this.slider.max = this.shown.levels.length - 1;
    this.slider.value = this.shown.start;
    const count = this.shown.levels.length;
    this.root.querySelector(".thumbs").innerHTML = this.network.truth.map((_, i) =>
      `<button type="button" class="thumb" data-image="${i}"><span class="picture" style="display:block;--n:${count}">` +
      `<img src="${this.data.sprites[this.shown.sprites][i]}" alt=""></span><span class="said"></span></button>`).join("");
    this.thumbs = [...this.root.querySelectorAll(".thumb")];
    this.thumbs.forEach((thumb, i) => thumb.addEventListener("click", () => { this.image = i; this.show(); }));
    this.show();
  }

  verdict(i) {
    const { classes, truth } = this.network;
    const answer = this.shown.predicted[i][this.level];
    return { answer: classes[answer], truth: classes[truth[i]], right: answer === truth[i] };
  }

  show() {
    this.level = Number(this.slider.value);
    const where = this.shown.levels[this.level];
    this.slider.setAttribute("aria-valuetext", where);
    this.root.querySelector("output").textContent = `${this.part("corruption").value}: ${where}`;
    this.thumbs.forEach((thumb, i) => {
      const { answer, truth, right } = this.verdict(i);
      thumb.setAttribute("aria-pressed", String(i === this.image));
      const img = thumb.querySelector("img");
      img.style.setProperty("--i", this.level);
      img.alt = `Test image of class ${truth}, ${this.part("corruption").value}: ${where}.`;
      const score = this.shown.percentiles[this.data.lead]?.[i][this.level] ?? null;
      thumb.querySelector(".said").innerHTML =
        `<span class="${right ? "good" : "bad"}">${right ? "✓" : "✗"} says ${page.escape(answer)}</span>` +
        (score === null ? "" : `<br>${page.escape(this.data.lead)} ${score} %${this.meter(score)}`);
    });
    this.detail();
  }

  // On paper no slider moves: every level of the chosen corruption, side by side.
  spread() {
    const { levels, predicted, percentiles, sprites } = this.shown;
    const { classes, truth } = this.network;
    const cell = (i) => (_, level) => {
      const right = predicted[i][level] === truth[i];
      const score = percentiles[this.data.lead]?.[i][level] ?? null;
      return `<td><span class="picture" style="display:block;--n:${levels.length}">` +
        `<img src="${this.data.sprites[sprites][i]}" style="--i:${level}" alt=""></span>` +
        `<span class="${right ? "good" : "bad"}">${right ? "✓" : "✗"} ${page.escape(classes[predicted[i][level]])}</span>` +
        `${score === null ? "" : `<small>${score} %</small>`}</td>`;
    };
    const row = (_, i) => `<tr>${levels.map(cell(i)).join("")}</tr>`;
    const caption = `${this.part("network").value}, ${this.part("corruption").value}: what the network says of each image (✓ right, ✗ wrong), and its ${this.data.lead} percentile.`;
    this.root.insertAdjacentHTML("beforeend",
      `<table class="printed-gallery"><caption>${page.escape(caption)}</caption><thead><tr>${levels.map((l) => `<th>${page.escape(l)}</th>`).join("")}</tr></thead><tbody>${truth.map(row).join("")}</tbody></table>`);
    this.root.classList.add("spread");
  }

  gather() {
    this.root.querySelector(".printed-gallery")?.remove();
    this.root.classList.remove("spread");
  }

  meter(percent) {
    return `<span class="meter" aria-hidden="true"><i style="width:${percent}%"></i></span>`;
  }

  detail() {
    const { answer, truth, right } = this.verdict(this.image);
    const rows = Object.entries(this.shown.percentiles).map(([method, table]) => {
      const value = table[this.image][this.level];
      return `<tr><th scope="row">${page.escape(method)}</th><td>${value === null ? "–" : `${value} %`}</td><td>${value === null ? "" : this.meter(value)}</td></tr>`;
    });
    const said = `Image ${this.image + 1} is ${truth}; the network says ${answer}: ${right ? "right" : "wrong"}.`;
    const percentiles = rows.length
      ? `<table><caption>Uncertainty, as percentile of the clean test predictions</caption><tbody>${rows.join("")}</tbody></table>`
      : '<p class="note">The run kept no uncertainties to compare with.</p>';
    this.root.querySelector(".detail").innerHTML =
      `<div><p><strong>${page.escape(said)}</strong></p>${this.modes()}</div><div>${percentiles}</div>`;
  }

  modes() {
    if (!this.network.orders.length) return "";
    const modes = this.shown.modes[this.image][this.level];
    const mean = modes.reduce((sum, v) => sum + v, 0) / modes.length;
    const rows = this.network.orders.map((order, k) =>
      `<tr><th scope="row">mode ${order}</th><td>${page.format(modes[k])}</td></tr>`);
    return "<table><caption>Modes of the field at this prediction (qipf); their mean is its uncertainty</caption>" +
      `<tbody>${rows.join("")}</tbody><tfoot><tr><th scope="row">mean</th><td>${page.format(mean)}</td></tr></tfoot></table>`;
  }
};

page.galleries = [...document.querySelectorAll("[data-gallery]")].map((root) => new page.Gallery(root));
addEventListener("beforeprint", () => page.galleries.forEach((gallery) => gallery.spread()));
addEventListener("afterprint", () => page.galleries.forEach((gallery) => gallery.gather()));
