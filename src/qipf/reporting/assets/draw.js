"use strict";
// A chart as the text of an SVG element. Nothing here listens; charts.js does.

page.marker = (look, x, y, size = 4) => {
  const s = size;
  const at = (points) => points.map(([dx, dy]) => `${(x + dx * s).toFixed(1)},${(y + dy * s).toFixed(1)}`).join(" ");
  const shapes = {
    square: [[-0.85, -0.85], [0.85, -0.85], [0.85, 0.85], [-0.85, 0.85]],
    diamond: [[0, -1.2], [1.2, 0], [0, 1.2], [-1.2, 0]],
    triangle: [[0, -1.1], [1.1, 0.9], [-1.1, 0.9]],
    down: [[0, 1.1], [1.1, -0.9], [-1.1, -0.9]],
    left: [[-1.1, 0], [0.9, -1.1], [0.9, 1.1]],
    right: [[1.1, 0], [-0.9, -1.1], [-0.9, 1.1]],
    plus: [[-0.4, -1.1], [0.4, -1.1], [0.4, -0.4], [1.1, -0.4], [1.1, 0.4], [0.4, 0.4],
      [0.4, 1.1], [-0.4, 1.1], [-0.4, 0.4], [-1.1, 0.4], [-1.1, -0.4], [-0.4, -0.4]],
    cross: [[-1.1, -0.6], [-0.6, -1.1], [0, -0.5], [0.6, -1.1], [1.1, -0.6], [0.5, 0],
      [1.1, 0.6], [0.6, 1.1], [0, 0.5], [-0.6, 1.1], [-1.1, 0.6], [-0.5, 0]],
  };
  const kind = look.hollow ? "mark hollow" : "mark";
  if (look.marker === "circle") return `<circle class="${kind}" cx="${x.toFixed(1)}" cy="${y.toFixed(1)}" r="${s}"/>`;
  return `<polygon class="${kind}" points="${at(shapes[look.marker])}"/>`;
};

// A short piece of the line with its marker, for legends.
page.swatch = (look, bare) =>
  `<svg class="swatch" width="34" height="12" aria-hidden="true" style="${page.colors(look)}">` +
  `<path class="line" d="M1 6H33" stroke-width="${look.width}" stroke-dasharray="${look.dash.join(" ")}"/>` +
  `${bare ? "" : page.marker(look, 17, 6, 3.6)}</svg>`;

page.frame = (view, width) => {
  const narrow = width < 520;
  const height = Math.round(Math.min(400, Math.max(260, width * 0.5)));
  const series = view.series.map((s) => ({ ...s, x: s.x ?? view.shared }));
  const [xLow, xHigh] = page.ends(view.x, series.flatMap((s) => s.x));
  const [yLow, yHigh] = page.ends(view.y, series.flatMap((s) => s.y));
  const yTicks = (view.y.ticks ?? page.ticks(yLow, yHigh, 7, view.y.log)).filter((t) => t >= yLow && t <= yHigh);
  const longest = Math.max(0, ...yTicks.map((t) => page.format(t).length));
  const box = { left: Math.max(narrow ? 56 : 62, 30 + 7.2 * longest), right: width - 14, top: 12, bottom: height - 46 };
  return {
    width, height, box, series, narrow, yLow, yHigh,
    x: page.scale(xLow, xHigh, box.left, box.right, view.x.log),
    y: page.scale(yLow, yHigh, box.bottom, box.top, view.y.log),
    xTicks: (view.x.ticks ?? page.ticks(xLow, xHigh, narrow ? 4 : 8, view.x.log)).filter((t) => t >= xLow && t <= xHigh),
    yTicks,
  };
};

page.axes = (view, frame) => {
  const { box, x, y } = frame;
  const parts = [];
  for (const tick of frame.yTicks) {
    const py = y(tick).toFixed(1);
    parts.push(`<path class="grid" d="M${box.left} ${py}H${box.right}"/>`);
    parts.push(`<text class="tick" x="${box.left - 7}" y="${py}" dy="0.32em" text-anchor="end">${page.format(tick)}</text>`);
  }
  let last = -Infinity;
  for (const tick of frame.xTicks) {
    const px = x(tick);
    const text = page.format(tick);
    parts.push(`<path class="grid" d="M${px.toFixed(1)} ${box.bottom}v5"/>`);
    const half = text.length * 3.6;
    if (px - half < last + 6) continue; // no room for its number
    last = px + half;
    parts.push(`<text class="tick" x="${px.toFixed(1)}" y="${box.bottom + 18}" text-anchor="middle">${text}</text>`);
  }
  const middle = (box.left + box.right) / 2;
  const half = (box.top + box.bottom) / 2;
  parts.push(`<path class="axis" d="M${box.left} ${box.top}V${box.bottom}H${box.right}"/>`);
  parts.push(`<text class="label" x="${middle}" y="${frame.height - 8}" text-anchor="middle">${page.escape(view.x.label)}</text>`);
  parts.push(`<text class="label" transform="translate(13 ${half}) rotate(-90)" text-anchor="middle">${page.escape(view.y.label)}</text>`);
  return parts.join("");
};

page.line = (series, look, frame, markers) => {
  let path = "";
  let pen = false;
  let marks = "";
  series.y.forEach((value, i) => {
    if (value === null) { pen = false; return; }
    const [px, py] = [frame.x(series.x[i]), frame.y(value)];
    path += `${pen ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`;
    pen = true;
    if (markers && !series.fixed) marks += page.marker(look, px, py, look.width > 2 ? 4.4 : 3.6);
  });
  return `<path class="line" d="${path}" stroke-width="${look.width}" stroke-dasharray="${look.dash.join(" ")}"/>${marks}`;
};

page.bars = (series, look, frame) => {
  const base = frame.y(0).toFixed(1);
  let path = `M${frame.x(series.x[0]).toFixed(1)} ${base}`;
  series.y.forEach((value, i) => {
    path += `V${frame.y(value).toFixed(1)}H${frame.x(series.x[i + 1]).toFixed(1)}`;
  });
  return `<path class="area" d="${path}V${base}Z" stroke-width="${look.width}" stroke-dasharray="${look.dash.join(" ")}"/>`;
};

// Lines across the chart with words at their heads, left out where they would run into another.
page.marks = (marks, frame) => {
  const { box } = frame;
  const ends = [-Infinity, -Infinity]; // of the words so far: plain ones stand above strong ones
  return marks.map((mark) => {
    const px = frame.x(mark.x);
    const wide = mark.label.length * (mark.strong ? 7.3 : 6.6);
    const before = px - 5 - wide; // a strong one stands before its line, away from what follows
    const after = px + 4 + wide > box.right ? before : px + 4;
    const left = mark.strong && before > box.left ? before : after;
    const row = mark.strong ? 1 : 0;
    const fits = left > ends[row] + 5;
    if (fits) ends[row] = left + wide;
    const word = fits ? `<text class="word" x="${left.toFixed(1)}" y="${box.top + 12 + 17 * row}">${page.escape(mark.label)}</text>` : "";
    return `<g class="at${mark.strong ? " strong" : ""}"><path d="M${px.toFixed(1)} ${box.top}V${box.bottom}"/>${word}</g>`;
  }).join("");
};

// What runs over the ends of y is cut off there; else nothing is, or marks at the edge would be.
page.cut = (bodies, frame, visible) => {
  const { box, yLow, yHigh } = frame;
  if (visible.every((s) => s.y.every((v) => v === null || (v >= yLow && v <= yHigh)))) return bodies;
  const [wide, high] = [box.right - box.left, box.bottom - box.top];
  return `<svg x="${box.left}" y="${box.top}" width="${wide}" height="${high}" viewBox="${box.left} ${box.top} ${wide} ${high}">${bodies}</svg>`;
};

// A point's name stands where it hides no other point and no other name.
page.named = (series, look, frame, taken) => {
  const [px, py] = [frame.x(series.x[0]), frame.y(series.y[0])];
  const wide = series.name.length * 7.3;
  const places = [[9, 4, "start"], [-9, 4, "end"], [0, -11, "middle"], [0, 20, "middle"],
    [8, -11, "start"], [8, 20, "start"], [-8, -11, "end"], [-8, 20, "end"]];
  const room = places.map(([dx, dy, anchor]) => {
    const left = px + dx - (anchor === "end" ? wide : anchor === "middle" ? wide / 2 : 0);
    return { dx, dy, anchor, left, right: left + wide, top: py + dy - 11, bottom: py + dy + 3 };
  }).find((r) => r.left > frame.box.left && r.right < frame.width && r.top > 0 &&
    !taken.some((t) => r.left < t.right && t.left < r.right && r.top < t.bottom && t.top < r.bottom));
  if (!room) return page.marker(look, px, py, 5);
  taken.push(room);
  return `${page.marker(look, px, py, 5)}<text class="name" x="${(px + room.dx).toFixed(1)}" y="${(py + room.dy).toFixed(1)}" text-anchor="${room.anchor}">${page.escape(series.name)}</text>`;
};

// The SVG's text, and the frame that tells where things are in it.
page.draw = (view, looks, shown, width, alt) => {
  const frame = page.frame(view, width);
  const visible = frame.series.filter((s) => s.fixed || shown.has(s.name));
  const taken = visible.filter(() => view.kind === "points").map((s) => {
    const [px, py] = [frame.x(s.x[0]), frame.y(s.y[0])];
    return { left: px - 8, right: px + 8, top: py - 7, bottom: py + 7 };
  });
  const bodies = visible.map((s) => {
    const look = looks[s.name];
    const body = view.kind === "points" ? page.named(s, look, frame, taken)
      : view.kind === "histogram" ? page.bars(s, look, frame)
      : page.line(s, look, frame, view.markers);
    return `<g class="series" data-name="${page.escape(s.name)}" style="${page.colors(look)}">${body}</g>`;
  });
  const label = page.escape(`${view.title}. ${alt}`);
  const svg = `<svg class="canvas" tabindex="0" role="img" aria-label="${label}" viewBox="0 0 ${frame.width} ${frame.height}">` +
    `${page.axes(view, frame)}${page.marks(view.marks, frame)}<path class="cursor" d=""/>${page.cut(bodies.join(""), frame, visible)}</svg>`;
  return { svg, frame, visible };
};
