"use strict";
// Keeps pages about running batches up to date.
// Draws the solver's steps as they happen: ‖g‖ and Δ on a logarithmic scale, with the target Δ*. Everything else
// (state, sentence, buttons, history) is rendered by the server only: after each event the page is fetched again,
// and the parts marked `data-fresh` are replaced. Without this script the table below the chart shows the same
// figures.

const SVG = "http://www.w3.org/2000/svg";
const BOX = { width: 640, height: 220, left: 56, right: 16, top: 12, bottom: 28 };
const SUPERSCRIPT = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
const ENDINGS = { completed: "Completed", failed: "Failed", held: "On hold, needs a decision" };
const CHANGES = ["sealed", "small_batch", "state", "step", "alert", "published", "held", "approve", "discard", "discarded", "retry", "failed", "completed"];
const POLL_SECONDS = 3; // where no stream announces a change

const power = (exponent) => "10" + [...String(exponent)].map((digit) => SUPERSCRIPT[digit]).join("");

function formatFigure(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0 || (Math.abs(value) >= 1e-3 && Math.abs(value) < 1e6)) return String(Number(value.toPrecision(3)));
  const [mantissa, exponent] = value.toExponential(1).split("e");
  const digits = mantissa.replace(/\.0$/, "");
  return (digits === "1" ? "" : digits + " × ") + power(Number(exponent));
}

function appendElement(parent, name, attributes, text) {
  const child = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) child.setAttribute(key, value);
  if (text !== undefined) child.textContent = text;
  parent.append(child);
}

function computeScales(steps) {
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

function drawCurve(svg, steps, scales, name) {
  const points = steps.map((step, place) => [place, step[name]]).filter(([, value]) => value > 0);
  const kind = name === "distance" ? "distance" : "gradient";
  const drawn = points.map(([place, value]) => [scales.x(place).toFixed(1), scales.y(value).toFixed(1)]);
  appendElement(svg, "polyline", { class: kind, points: drawn.map((point) => point.join(",")).join(" ") });
  for (const [x, y] of drawn) appendElement(svg, "circle", { class: kind, cx: x, cy: y, r: 3.5 });
}

function drawChart(holder, steps) {
  const svg = document.createElementNS(SVG, "svg");
  BOX.width = Math.max(280, Math.min(holder.clientWidth || 640, 640)); // keeps text readable on a phone
  svg.setAttribute("viewBox", `0 0 ${BOX.width} ${BOX.height}`);
  const scales = computeScales(steps), end = BOX.width - BOX.right;
  const stride = Math.max(Math.ceil((scales.high - scales.low) / 5), 1);
  for (let exponent = scales.low; exponent <= scales.high; exponent += stride) {
    const y = scales.y(10 ** exponent);
    appendElement(svg, "line", { class: "grid", x1: BOX.left, x2: end, y1: y, y2: y });
    appendElement(svg, "text", { class: "tick", x: BOX.left - 8, y: y + 4, "text-anchor": "end" }, power(exponent));
  }
  const target = steps[steps.length - 1].target;
  if (target > 0) appendElement(svg, "line", { class: "target", x1: BOX.left, x2: end, y1: scales.y(target), y2: scales.y(target) });
  drawCurve(svg, steps, scales, "gradient_norm");
  drawCurve(svg, steps, scales, "distance");
  const every = Math.max(Math.ceil(steps.length / 12), 1);
  steps.forEach((step, place) => {
    if (place % every === 0)
      appendElement(svg, "text", { class: "tick", x: scales.x(place), y: BOX.height - 8, "text-anchor": "middle" }, step.step);
  });
  holder.replaceChildren(svg);
}

function appendRow(body, step) {
  const row = document.createElement("tr");
  const cells = [step.step, formatFigure(step.gradient_norm), formatFigure(step.distance), formatFigure(step.target), step.passes, step.seconds];
  cells.forEach((content, place) => {
    const cell = document.createElement(place === 0 ? "th" : "td");
    if (place === 0) cell.scope = "row";
    cell.textContent = content ?? "–";
    row.append(cell);
  });
  body.append(row);
}

function showSteps(figureElement, steps) {
  const part = (name) => figureElement.querySelector(`[data-${name}]`);
  part("plot").hidden = part("legend").hidden = part("details").hidden = false;
  drawChart(part("plot"), steps);
  const last = steps[steps.length - 1];
  part("status").textContent = `Step ${last.step}: ‖g‖ = ${formatFigure(last.gradient_norm)}, Δ = ${formatFigure(last.distance)}` +
    (last.percent == null || last.percent >= 100 ? "" : `, about ${last.percent} % done`);
}

// Fetches this page and replaces its fresh parts. Calls during a fetch lead to one more fetch after it.
let fetching = false, fetchAgain = false, retry;
async function refresh() {
  if (fetching) { fetchAgain = true; return; }
  fetching = true;
  try {
    do {
      fetchAgain = false;
      const answer = await fetch(location.href, { headers: { Accept: "text/html" }, cache: "no-store" });
      if (answer.redirected) { location.reload(); return; } // the session has ended
      if (answer.status >= 500) throw new Error("the gateway is busy");
      if (answer.ok) replaceParts(new DOMParser().parseFromString(await answer.text(), "text/html"));
    } while (fetchAgain);
  } catch { // the last event of a batch is not repeated, so an old button would stay if nobody asked again
    clearTimeout(retry);
    retry = setTimeout(refresh, 1000 * POLL_SECONDS);
  }
  finally { fetching = false; }
}

function replaceParts(page) {
  for (const part of document.querySelectorAll("[data-fresh]")) {
    const newer = page.querySelector(`[data-fresh="${part.dataset.fresh}"]`);
    if (newer === null || newer.outerHTML === part.outerHTML) continue;
    const focused = part.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    for (const name of part.getAttributeNames()) if (!newer.hasAttribute(name)) part.removeAttribute(name);
    for (const { name, value } of newer.attributes) part.setAttribute(name, value);
    part.replaceChildren(...[...newer.childNodes].map((node) => document.importNode(node, true)));
    if (focused !== null) [...part.querySelectorAll("a")].find((link) => link.getAttribute("href") === focused)?.focus();
  }
  const solver = document.querySelector("[data-solver]"), newer = page.querySelector("[data-solver]");
  if (solver && newer && !newer.hidden) solver.hidden = false;
  addStartedBatches(page);
}

// Adds the charts of batches that started after this page was loaded, in place of those that have ended.
function addStartedBatches(page) {
  for (const newer of page.querySelectorAll("[data-batches] [data-live]")) {
    if (document.querySelector(`[data-live="${newer.dataset.live}"]`)) continue;
    document.querySelectorAll("[data-batches] [data-ended]").forEach((old) => old.closest("section").remove());
    const card = document.importNode(newer.closest("section"), true);
    document.querySelector("[data-batches]").append(card);
    startFigure(card.querySelector("[data-live]"));
  }
}

function followBatch(figureElement, steps) {
  const source = new EventSource(figureElement.dataset.events);
  const status = figureElement.querySelector("[data-status]");
  let lost = false;
  source.addEventListener("progress", (event) => {
    const step = JSON.parse(event.data);
    if (step.gradient_norm === undefined) { // appended rows are represented before the solver starts
      const left = step.eta_seconds == null ? "" : `, about ${Math.round(step.eta_seconds)} seconds left`;
      status.textContent = `Computing the features of ${step.part}: ${Math.round(step.percent)} % done${left}.`;
      return;
    }
    if (steps.length && step.step <= steps[steps.length - 1].step) {
      steps.length = 0; // another attempt or method starts from the first step
      figureElement.querySelector("[data-steps]").replaceChildren();
    }
    steps.push(step);
    appendRow(figureElement.querySelector("[data-steps]"), step);
    showSteps(figureElement, steps);
  });
  for (const kind of CHANGES) source.addEventListener(kind, refresh);
  for (const [ending, name] of Object.entries(ENDINGS)) {
    source.addEventListener(ending, () => {
      if (ending !== "held") source.close(); // a batch on hold continues when someone decides
      figureElement.dataset.ended = "";
      const link = document.createElement("a");
      link.href = figureElement.dataset.live;
      link.textContent = "View the result";
      status.append(`${status.textContent.endsWith(".") ? "" : "."} ${name}. `, link);
    });
  }
  source.addEventListener("error", () => { lost = true; }); // the browser connects again by itself
  source.addEventListener("open", () => { if (lost) { lost = false; refresh(); } });
  addEventListener("pagehide", () => source.close());
}

function startFigure(figureElement) {
  const steps = [...figureElement.querySelectorAll("[data-step]")].map((row) => JSON.parse(row.dataset.step));
  if (steps.length) showSteps(figureElement, steps);
  if (figureElement.dataset.events) followBatch(figureElement, steps);
  addEventListener("resize", () => { if (steps.length) drawChart(figureElement.querySelector("[data-plot]"), steps); });
}

document.querySelectorAll("[data-live]").forEach(startFigure);
// A page from the browser's cache, or one in a tab that was in the background, may be old.
addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
function poll() { // until nothing on the page can change any more
  const polled = document.querySelector("[data-poll], [data-state=failed]");
  if (polled === null) return;
  setTimeout(() => { if (!document.hidden) refresh(); poll(); }, 1000 * (polled.dataset.poll ?? POLL_SECONDS));
}
poll();
