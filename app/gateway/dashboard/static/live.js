"use strict";
// Draws the solver's steps as they come: ‖g‖ and Δ on a logarithmic scale, with the target Δ*.
// The table under the drawing holds the same figures, and is all there is without this script.

const SVG = "http://www.w3.org/2000/svg";
const BOX = { width: 640, height: 220, left: 56, right: 16, top: 12, bottom: 28 };
const SUPERSCRIPT = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
const ENDINGS = { completed: "Completed", failed: "Failed", held: "On hold" };

const power = (exponent) => "10" + [...String(exponent)].map((digit) => SUPERSCRIPT[digit]).join("");

function figure(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0 || (Math.abs(value) >= 1e-3 && Math.abs(value) < 1e6)) return String(Number(value.toPrecision(3)));
  const [mantissa, exponent] = value.toExponential(1).split("e");
  const digits = mantissa.replace(/\.0$/, "");
  return (digits === "1" ? "" : digits + " × ") + power(Number(exponent));
}

function element(parent, name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

function scales(steps) {
  const logs = steps
    .flatMap((step) => [step.gradient_norm, step.distance, step.target])
    .filter((value) => value > 0)
    .map(Math.log10);
  const low = Math.floor(Math.min(...logs)), high = Math.max(Math.ceil(Math.max(...logs)), low + 1);
  const wide = BOX.width - BOX.left - BOX.right, tall = BOX.height - BOX.top - BOX.bottom;
  const places = Math.max(steps.length - 1, 1);
  return {
    low, high,
    x: (place) => BOX.left + (wide * place) / places,
    y: (value) => BOX.top + tall * (1 - (Math.log10(value) - low) / (high - low)),
  };
}

function curve(svg, steps, at, name) {
  const points = steps.map((step, place) => [place, step[name]]).filter(([, value]) => value > 0);
  const kind = name === "distance" ? "distance" : "gradient";
  const drawn = points.map(([place, value]) => [at.x(place).toFixed(1), at.y(value).toFixed(1)]);
  element(svg, "polyline", { class: kind, points: drawn.map((point) => point.join(",")).join(" ") });
  for (const [x, y] of drawn) element(svg, "circle", { class: kind, cx: x, cy: y, r: 3.5 });
}

function draw(holder, steps) {
  const svg = document.createElementNS(SVG, "svg");
  BOX.width = Math.max(280, Math.min(holder.clientWidth || 640, 640)); // letters keep their size on a phone
  svg.setAttribute("viewBox", `0 0 ${BOX.width} ${BOX.height}`);
  const at = scales(steps), end = BOX.width - BOX.right;
  const stride = Math.max(Math.ceil((at.high - at.low) / 5), 1);
  for (let exponent = at.low; exponent <= at.high; exponent += stride) {
    const y = at.y(10 ** exponent);
    element(svg, "line", { class: "grid", x1: BOX.left, x2: end, y1: y, y2: y });
    element(svg, "text", { class: "tick", x: BOX.left - 8, y: y + 4, "text-anchor": "end" }, power(exponent));
  }
  const target = steps[steps.length - 1].target;
  if (target > 0) element(svg, "line", { class: "target", x1: BOX.left, x2: end, y1: at.y(target), y2: at.y(target) });
  curve(svg, steps, at, "gradient_norm");
  curve(svg, steps, at, "distance");
  const every = Math.max(Math.ceil(steps.length / 12), 1);
  steps.forEach((step, place) => {
    if (place % every === 0)
      element(svg, "text", { class: "tick", x: at.x(place), y: BOX.height - 8, "text-anchor": "middle" }, step.step);
  });
  holder.replaceChildren(svg);
}

function tabulate(body, step) {
  const row = document.createElement("tr");
  const cells = [step.step, figure(step.gradient_norm), figure(step.distance), figure(step.target), step.passes, step.seconds];
  cells.forEach((content, place) => {
    const cell = document.createElement(place === 0 ? "th" : "td");
    if (place === 0) cell.scope = "row";
    cell.textContent = content ?? "–";
    row.append(cell);
  });
  body.append(row);
}

function show(figureElement, steps) {
  const part = (name) => figureElement.querySelector(`[data-${name}]`);
  part("plot").hidden = part("legend").hidden = part("details").hidden = false;
  draw(part("plot"), steps);
  const last = steps[steps.length - 1];
  part("status").textContent = `Step ${last.step}: ‖g‖ = ${figure(last.gradient_norm)}, Δ = ${figure(last.distance)}` +
    (last.percent == null || last.percent >= 100 ? "" : `, about ${last.percent} % of the way`);
}

function mark(stepName) {
  const all = [...document.querySelectorAll("[data-walk]")];
  const place = all.findIndex((item) => item.dataset.walk === stepName);
  all.forEach((item, k) => {
    item.className = k < place ? "done" : k === place ? "now" : "";
    if (k === place) item.setAttribute("aria-current", "step");
    else item.removeAttribute("aria-current");
  });
}

function follow(figureElement, steps) {
  const source = new EventSource(figureElement.dataset.events);
  const status = figureElement.querySelector("[data-status]");
  source.addEventListener("progress", (event) => {
    const step = JSON.parse(event.data);
    if (steps.length && step.step <= steps[steps.length - 1].step) {
      steps.length = 0; // another attempt, or another method, begins at the beginning
      figureElement.querySelector("[data-steps]").replaceChildren();
    }
    steps.push(step);
    tabulate(figureElement.querySelector("[data-steps]"), step);
    show(figureElement, steps);
  });
  source.addEventListener("step", (event) => mark(JSON.parse(event.data).step));
  for (const [ending, name] of Object.entries(ENDINGS)) {
    source.addEventListener(ending, () => {
      source.close();
      const heading = document.querySelector("[data-state]");
      if (heading) heading.textContent = name;
      const link = document.createElement("a");
      link.href = figureElement.dataset.live;
      link.textContent = "See what came of it";
      status.append(`. ${name}. `, link);
    });
  }
  addEventListener("pagehide", () => source.close());
}

for (const figureElement of document.querySelectorAll("[data-live]")) {
  const steps = [...figureElement.querySelectorAll("[data-step]")].map((row) => JSON.parse(row.dataset.step));
  if (steps.length) show(figureElement, steps);
  if (figureElement.dataset.events) follow(figureElement, steps);
}
