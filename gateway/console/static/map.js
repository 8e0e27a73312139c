// The regions, as far from each other as their measured round trips, and one arc per direction.

import { s, ms, number, many } from "./dom.js";

const WIDE = { width: 720, height: 380, margin_x: 120, margin_y: 62, radius: 32, bend: 58 };
const NARROW = { width: 400, height: 380, margin_x: 60, margin_y: 62, radius: 31, bend: 46 };
const LEAST_HEIGHT = 220, CHARACTER = 6.6;
const MARK = { ok: "", passing: "…", behind: "▲", cut: "✕", diverged: "✕", silent: "?", none: "" };

const TURNS = 36, BETTER = 1.15;
let turned = 0; // kept until another angle makes a clearly larger picture: a map that turns around says nothing

function turn(regions, step) {
  const cos = Math.cos((Math.PI * step) / TURNS), sin = Math.sin((Math.PI * step) / TURNS);
  return regions.map((r) => ({ name: r.name, x: r.x_ms * cos - r.y_ms * sin, y: r.x_ms * sin + r.y_ms * cos }));
}

function extent(points) {
  const xs = points.map((p) => p.x), ys = points.map((p) => p.y);
  return { left: Math.min(...xs), right: Math.max(...xs), top: Math.min(...ys), bottom: Math.max(...ys) };
}

function scaleOf({ left, right, top, bottom }, size) {
  const scale = Math.min((size.width - 2 * size.margin_x) / (right - left || 1e-9), (size.height - 2 * size.margin_y) / (bottom - top || 1e-9));
  return Math.min(scale, 1e6);
}

// The scale that fits, and the height that is left of the picture by it: wide meshes make flat pictures.
function scaled(regions, size) {
  const scales = Array.from({ length: TURNS }, (_, step) => scaleOf(extent(turn(regions, step)), size));
  const best = scales.indexOf(Math.max(...scales));
  if (scales[best] > scales[turned] * BETTER) turned = best;
  const points = turn(regions, turned), box = extent(points), scale = regions.length > 1 ? scales[turned] : 1;
  const height = Math.min(size.height, Math.max(LEAST_HEIGHT, (box.bottom - box.top) * scale + 2 * size.margin_y));
  const places = new Map(points.map((p) => [p.name, {
    x: size.width / 2 + (p.x - (box.left + box.right) / 2) * scale, y: height / 2 + (p.y - (box.top + box.bottom) / 2) * scale }]));
  return { places, scale, height };
}

// Both directions bend to their own left, so the two arcs of a pair never lie on each other.
function arc(from, to, size) {
  const dx = to.x - from.x, dy = to.y - from.y, far = Math.hypot(dx, dy) || 1;
  const ux = dx / far, uy = dy / far, nx = uy, ny = -ux;
  const bend = Math.min(size.bend, far * 0.24);
  const gap = Math.min(size.radius + 5, far / 3);
  const start = { x: from.x + ux * gap + nx * 9, y: from.y + uy * gap + ny * 9 };
  const end = { x: to.x - ux * (gap + 3) + nx * 9, y: to.y - uy * (gap + 3) + ny * 9 };
  const middle = { x: (from.x + to.x) / 2 + nx * bend * 1.3, y: (from.y + to.y) / 2 + ny * bend * 1.3 };
  const label = { x: (start.x + end.x) / 4 + middle.x / 2, y: (start.y + end.y) / 4 + middle.y / 2 };
  return { path: `M${start.x.toFixed(1)} ${start.y.toFixed(1)}Q${middle.x.toFixed(1)} ${middle.y.toFixed(1)} ${end.x.toFixed(1)} ${end.y.toFixed(1)}`, label, nx, ny };
}

export function shortState(pair) {
  if (pair.state === "ok" || pair.state === "passing") return pair.lag_records ? `${number(pair.lag_records)} on the way` : "in step";
  if (pair.state === "behind") return `${ms(pair.lag_ms)} behind`;
  return { cut: "no connection", diverged: "diverged", silent: "not known", none: "no streams" }[pair.state];
}

export function sentence(pair) {
  const lag = pair.lag_records === null ? "" : `, ${many(pair.lag_records, "record")} and ${ms(pair.lag_ms)} behind`;
  return `${pair.origin} to ${pair.dest}: ${pair.words}${pair.cause ? ` (${pair.cause})` : ""}${lag}`;
}

function scaleBar(scale, size) {
  const nice = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500].filter((v) => v * scale <= 150).at(-1) ?? 0.1;
  const length = Math.max(8, nice * scale);
  const y = size.height - 16;
  return s("g.scale", {},
    s("path", { d: `M16 ${y - 4}v8M16 ${y}h${length.toFixed(1)}m0 -4v8` }),
    s("text", { x: 24 + length, y: y + 4 }, `${nice} ms round trip`));
}

export function map(overview, narrow) {
  const bounds = narrow ? NARROW : WIDE;
  const { regions, pairs } = overview;
  const { places, scale, height } = scaled(regions, bounds);
  const size = { ...bounds, height };
  const labelled = regions.length <= 4;
  const quiet = (pair) => pair.state === "none" || pair.state === "ok";
  const arcs = pairs.map((pair) => ({ pair, ...arc(places.get(pair.origin), places.get(pair.dest), size) }));
  const bad = (pair) => !["ok", "none", "passing"].includes(pair.state);
  return s("svg.map", { viewBox: `0 0 ${size.width} ${size.height}`, role: "img", "aria-label": `Map of ${regions.length} regions. ${pairs.map(sentence).join(". ")}` },
    s("defs", {}, ["ok", "passing", "behind", "cut", "diverged", "silent", "none"].map((state) =>
      s("marker", { id: `tip-${state}`, viewBox: "0 0 10 10", refX: "9", refY: "5", markerWidth: "8", markerHeight: "8", markerUnits: "userSpaceOnUse", orient: "auto-start-reverse" },
        s(`path.tip.${state}`, { d: "M0 1L10 5L0 9z" })))),
    scaleBar(scale, size),
    arcs.map(({ pair, path }) => s(`path.arc.${pair.state}`, { d: path, "marker-end": `url(#tip-${pair.state})` }, s("title", {}, sentence(pair)))),
    regions.map((region) => {
      const at = places.get(region.name);
      return s(`g.region.${region.state}`, {},
        s("circle", { cx: at.x.toFixed(1), cy: at.y.toFixed(1), r: size.radius }),
        s("text.name", { x: at.x.toFixed(1), y: (at.y + (region.state === "silent" ? 0 : 1)).toFixed(1) }, region.name),
        s("text.under", { x: at.x.toFixed(1), y: (at.y + 15).toFixed(1) }, region.state === "silent" ? "silent" : many(region.homes, "home")),
        s("title", {}, `${region.name}: ${region.words}; home of ${many(region.homes, "partition")}`));
    }),
    labelled ? pairs.filter((pair) => pair.origin < pair.dest && pair.rtt_ms !== null).map((pair) => {
      const from = places.get(pair.origin), to = places.get(pair.dest);
      return s("text.apart", { x: ((from.x + to.x) / 2).toFixed(1), y: ((from.y + to.y) / 2 + 4).toFixed(1) }, ms(pair.rtt_ms));
    }) : null,
    arcs.filter(({ pair }) => (labelled ? !quiet(pair) : bad(pair))).map(({ pair, label, nx, ny }) => {
      const text = `${MARK[pair.state] ? `${MARK[pair.state]} ` : ""}${shortState(pair)}`;
      const half = (text.length * CHARACTER) / 2;
      const wanted = label.x + nx * (9 + half * Math.min(1, Math.abs(nx) * 1.3));
      const x = Math.max(half + 4, Math.min(size.width - half - 4, wanted));
      return s(`text.label.${pair.state}`, { x: x.toFixed(1), y: (label.y + ny * 9 + 4).toFixed(1), "text-anchor": "middle" }, text);
    }));
}
