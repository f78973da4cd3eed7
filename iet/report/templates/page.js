"use strict";
// Links text, table and curves, and draws curves and graph from the JSON in the page. The JSON holds untrusted
// input, so it is only set as text.
const data = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const all = (selector) => [...document.querySelectorAll(selector)];
const SVG = "http://www.w3.org/2000/svg";

function make(tag, attributes = {}, ...children) {
  const drawn = ["svg", "path", "line", "rect", "text", "g", "circle", "title", "defs", "marker"].includes(tag);
  const element = drawn ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "style") element.style.cssText = value;
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

const look = (agent) => (agent === null ? "" : `--hue:${data.agents[agent].colour}`);
const named = (agent) => (agent === null ? "unattributed" : data.agents[agent].name);
const heading = (text) => make("h2", {}, text);
const note = (line) => make("p", { class: "soft small" }, line);
const terms = (lines) => make("details", {}, make("summary", {}, "In the terms of the method"), ...lines.map(note));
const spans = all("#text .segment"); // none where only token ids were audited
const rows = all("#segments tbody tr");
const cards = all("#why article");
document.documentElement.classList.remove("loading"); // nothing is laid out before this script ends

// ------------------------------------------------------------ filters

let kept = null; // the agent (or "none") that alone is shown, null for all

function filter(who) {
  kept = kept === who ? null : who;
  at("text").classList.toggle("dim", kept !== null);
  data.segments.forEach(({ agent }, i) => {
    const fits = kept === null || kept === String(agent ?? "none");
    spans[i]?.classList.toggle("kept", fits);
    rows[i].hidden = !fits;
  });
  for (const curve of all("path.curve")) curve.classList.toggle("faint", kept !== null && curve.dataset.agent !== kept);
  for (const button of at("filters").children) button.setAttribute("aria-pressed", String(button.dataset.who === kept));
}

for (const button of at("filters").children) button.addEventListener("click", () => filter(button.dataset.who));

// ------------------------------------------------------------ one segment in text, table, curves and card

let current = -1;

function select(i, { scroll = false, focus = false } = {}) {
  if (i < 0 || i >= data.segments.length) return;
  if (current >= 0) {
    spans[current]?.classList.remove("current");
    spans[current]?.setAttribute("tabindex", "-1");
    rows[current].classList.remove("current");
    blocks[current]?.classList.remove("current");
  }
  current = i;
  spans[i]?.classList.add("current");
  spans[i]?.setAttribute("tabindex", "0");
  rows[i].classList.add("current");
  blocks[i]?.classList.add("current");
  if (focus) spans[i]?.focus({ preventScroll: true });
  if (scroll) spans[i]?.scrollIntoView({ block: "center" });
  const open = Boolean(at("card").querySelector("details")?.open); // what a reader has opened stays open
  at("card").replaceChildren(...cards[i].cloneNode(true).childNodes);
  const numbers = at("card").querySelector("details");
  if (numbers) numbers.open = open;
  showCursor(data.segments[i]);
}

const segmentOf = (target) => {
  const found = target.closest(".segment");
  return found ? Number(found.id.slice(1)) - 1 : -1;
};
at("text").addEventListener("pointerover", (event) => select(segmentOf(event.target)));
at("text").addEventListener("focusin", (event) => {
  const i = segmentOf(event.target);
  if (i !== current) select(i);
});
at("text").addEventListener("click", (event) => select(segmentOf(event.target), { focus: true }));
at("text").addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  const last = data.segments.length - 1;
  const to = step ? current + step : { Home: 0, End: last }[event.key];
  if (to === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  select(Math.min(last, Math.max(0, to)), { focus: true, scroll: true });
});
rows.forEach((row, i) => row.addEventListener("click", (event) => {
  event.preventDefault(); // of its link, which does the same without this script
  select(i, { scroll: true, focus: true });
}));

// ------------------------------------------------------------ curves

const WIDTH = 1000, HEIGHT = 130, LOW = 26;
const across = (position) => (WIDTH * position) / Math.max(1, data.length);
const DASHES = ["none", "8 4", "2 3", "10 3 2 3"]; // beside the colours, for those who do not see them
let cursor = null;
let blocks = []; // of the strip

function showCursor(segment) {
  if (!cursor) return;
  cursor.setAttribute("x", across(segment.start));
  cursor.setAttribute("width", Math.max(2, across(segment.end) - across(segment.start)));
}

// A block too narrow for its agent's name has its number, which the table has too, or nothing.
function fit() {
  const fill = (words) => blocks.forEach((block, i) => { if (words[i] !== null) block.textContent = words[i]; });
  const cut = () => blocks.map((block) => block.scrollWidth > block.clientWidth);
  fill(data.segments.map((segment) => segment.title));
  const narrow = cut();
  fill(narrow.map((is, i) => (is ? String(i + 1) : null)));
  fill(cut().map((is) => (is ? "" : null)));
}

function curves() {
  if (!data.curves) return;
  const { positions, scores, margin, low, high } = data.curves;
  const scale = (value, top, height) => top + height * (1 - (value - low) / Math.max(1e-9, high - low));
  const svg = make("svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT + LOW + 8}`, preserveAspectRatio: "none", role: "img",
    "aria-label": "Mean score under each agent's key along the text, with the boundaries found",
  });
  for (const [from, to] of data.doubts) {
    svg.append(make("rect", { class: "doubt", x: across(from), y: 0, width: Math.max(1, across(to) - across(from)), height: HEIGHT }));
  }
  for (const boundary of data.boundaries) {
    svg.append(make("line", { class: "boundary", x1: across(boundary), x2: across(boundary), y1: 0, y2: HEIGHT }));
  }
  const path = (values, top, height) =>
    values.map((value, i) => `${i ? "L" : "M"}${across(positions[i]).toFixed(1)} ${scale(value, top, height).toFixed(1)}`).join("");
  svg.append(make("line", { class: "axis", x1: 0, x2: WIDTH, y1: scale(0, 0, HEIGHT), y2: scale(0, 0, HEIGHT) }));
  const pattern = (k) => `stroke-dasharray:${DASHES[k % DASHES.length]}`;
  scores.forEach(([agent, values], k) => {
    const style = `${look(agent)};${pattern(k)}`;
    svg.append(make("path", { class: "curve", "data-agent": agent, d: path(values, 0, HEIGHT), style }, make("title", {}, named(agent))));
  });
  const most = Math.max(...margin, 1e-9);
  const band = margin.map((value, i) => `L${across(positions[i]).toFixed(1)} ${(HEIGHT + LOW + 4 - (LOW * value) / most).toFixed(1)}`).join("");
  if (margin.length) {
    const first = across(positions[0]), last = across(positions[positions.length - 1]);
    svg.append(make("path", { d: `M${first} ${HEIGHT + LOW + 4}${band}L${last} ${HEIGHT + LOW + 4}Z`, style: "fill:var(--soft);opacity:.45" }, make("title", {}, "margin")));
  }
  cursor = make("rect", { y: 0, height: HEIGHT + LOW + 8, x: -9, width: 0, style: "fill:none;stroke:var(--ink);stroke-width:1.5", "vector-effect": "non-scaling-stroke" });
  svg.append(cursor);
  // The names of the agents, as wide as their text.
  const strip = make("div", { class: "strip", "aria-hidden": "true" }, ...data.segments.map((segment) =>
    make("span", { style: `${look(segment.agent)};flex:${segment.end - segment.start} 0 0`, title: segment.title }, segment.title)));
  blocks = [...strip.children];
  const figure = make("figure", {}, svg, strip);
  const segmentAt = (event) => {
    const box = svg.getBoundingClientRect();
    const position = ((event.clientX - box.left) / box.width) * data.length;
    return data.segments.findIndex((segment) => position < segment.end);
  };
  figure.addEventListener("pointermove", (event) => select(segmentAt(event)));
  figure.addEventListener("click", (event) => select(segmentAt(event), { scroll: true, focus: true }));
  const legend = make("p", { class: "small legend" });
  scores.forEach(([agent], k) => {
    const sample = make("svg", { class: "line", viewBox: "0 0 40 12", "aria-hidden": "true" },
      make("line", { class: "curve", x1: 0, x2: 40, y1: 6, y2: 6, style: `${look(agent)};${pattern(k)}` }));
    legend.append(make("span", {}, sample, named(agent)), " ");
  });
  at("curves").append(
    heading("Evidence for each agent along the text"),
    figure,
    legend,
    note(data.curves.note),
    terms(data.curves.terms),
  );
  fit();
  new ResizeObserver(fit).observe(strip);
}

// ------------------------------------------------------------ transitions

function graph() {
  if (!data.graph) return;
  const { nodes, edges, lines, terms: more } = data.graph;
  const short = nodes.map((agent) => (named(agent).length > 18 ? `${named(agent).slice(0, 17)}…` : named(agent)));
  const wide = Math.max(...short.map((name) => name.length)) * 9 + 8; // half of the longest name may stick out
  const node = 22, radius = Math.max(150, nodes.length * 10), size = 2 * radius + Math.max(120, wide);
  const place = nodes.map((_, i) => {
    const angle = (2 * Math.PI * i) / nodes.length - Math.PI / 2;
    return [size / 2 + radius * Math.cos(angle), size / 2 + radius * Math.sin(angle)];
  });
  const svg = make("svg", { viewBox: `0 0 ${size} ${size}`, role: "img", "aria-label": "Who wrote after whom", style: `width:${size}px;${nodes.length > 15 ? "" : "max-width:100%"}` });
  svg.append(make("defs", {}, make("marker", { id: "arrow", viewBox: "0 0 10 10", refX: 9, refY: 5, markerWidth: 7, markerHeight: 7, orient: "auto" },
    make("path", { d: "M0 0L10 5L0 10Z", style: "fill:var(--ink)" }))));
  for (const [from, to, count, confidence] of edges) {
    const [[x1, y1], [x2, y2]] = [place[from], place[to]];
    const [dx, dy] = [x2 - x1, y2 - y1], long = Math.hypot(dx, dy) || 1;
    const [nx, ny] = [-dy / long, dx / long], bend = 34;
    const start = [x1 + (dx / long) * node + nx * 6, y1 + (dy / long) * node + ny * 6];
    const end = [x2 - (dx / long) * (node + 4) + nx * 6, y2 - (dy / long) * (node + 4) + ny * 6];
    const middle = [(x1 + x2) / 2 + nx * bend, (y1 + y2) / 2 + ny * bend];
    svg.append(
      make("path", {
        d: `M${start.join(" ")}Q${middle.join(" ")} ${end.join(" ")}`, "marker-end": "url(#arrow)",
        style: `fill:none;stroke:var(--ink);stroke-width:${(1 + 2 * confidence).toFixed(2)};opacity:${(0.35 + 0.65 * confidence).toFixed(2)}`,
      }, make("title", {}, `${named(nodes[from])} → ${named(nodes[to])}, ${count} times, confidence ${confidence.toFixed(2)}`)),
      make("text", { x: middle[0] - nx * 8, y: middle[1] - ny * 8 + 4, "text-anchor": nx > 0.3 ? "start" : nx < -0.3 ? "end" : "middle" }, `${count > 1 ? `×${count} ` : ""}${confidence.toFixed(2)}`),
    );
  }
  nodes.forEach((agent, i) => {
    const [x, y] = place[i];
    svg.append(
      make("circle", { cx: x, cy: y, r: node, style: `${look(agent)};fill:color-mix(in srgb, var(--hue) 55%, var(--page));stroke:var(--ink)` }, make("title", {}, named(agent))),
      make("text", { x, y: y + 4, "text-anchor": "middle", style: "font-weight:600" }, short[i]),
    );
  });
  at("graph").append(heading("Who wrote after whom"), make("figure", {}, svg), ...lines.map(note), terms(more));
}

curves();
graph();
if (data.segments.length) select(0);
