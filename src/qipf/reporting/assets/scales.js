"use strict";
// What all parts of the page share: numbers to pixels, ticks, texts.
const page = {};

page.escape = (text) =>
  String(text).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);

page.format = (value) => {
  if (value === null) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1000) return value.toLocaleString("en", { maximumFractionDigits: 0 });
  return String(Number(value.toPrecision(3)));
};

// A function from [low, high] to [from, to] pixels.
page.scale = (low, high, from, to, log) => {
  const bend = log ? Math.log : (v) => v;
  const start = bend(low);
  const span = bend(high) - start || 1;
  return (value) => from + ((bend(value) - start) / span) * (to - from);
};

// Round numbers that divide [low, high] into about `count` parts.
page.ticks = (low, high, count, log) => {
  if (log) return page.logTicks(low, high);
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].find((s) => s * power >= rough * 0.999) * power;
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) {
    ticks.push(Number((i * step).toPrecision(12)));
  }
  return ticks;
};

page.logTicks = (low, high) => {
  const steps = high / low > 200 ? [1] : [1, 2, 5];
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
    for (const step of steps) {
      const tick = Number((step * 10 ** power).toPrecision(6));
      if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(tick);
    }
  }
  return ticks;
};

// The ends of an axis: as given, else those of the values with a little air.
page.ends = (axis, values) => {
  const known = values.filter((v) => v !== null && (!axis.log || v > 0));
  let low = axis.low ?? (known.length ? Math.min(...known) : 0);
  let high = axis.high ?? (known.length ? Math.max(...known) : 1);
  if (low === high) [low, high] = axis.log ? [low / 2, high * 2] : [low - 0.5, high + 0.5];
  if (axis.log) {
    const air = (high / low) ** 0.06;
    return [axis.low ?? low / air, axis.high ?? high * air];
  }
  const air = (high - low) * 0.04;
  return [axis.low ?? low - air, axis.high ?? high + air];
};

page.colors = (look) => `--c:${look.color};--d:${look.dark}`;

page.data = (element) => JSON.parse(element.querySelector("script[type='application/json']").textContent);
