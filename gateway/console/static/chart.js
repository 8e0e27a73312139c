// A line over time as SVG: no axes that need explaining, the newest and the largest value in words.

import { s, number } from "./dom.js";

export function line(values, { width = 160, height = 32, label = "" } = {}) {
  const known = values.filter((value) => value !== null);
  if (known.length < 2) return null;
  const most = Math.max(...known, 1);
  const step = width / Math.max(1, values.length - 1);
  const points = values.map((value, place) => (value === null ? null : `${(place * step).toFixed(1)} ${(height - 2 - (value / most) * (height - 4)).toFixed(1)}`)).filter(Boolean);
  return s("svg.line", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `${label}: now ${number(known.at(-1))}, at most ${number(most)}` },
    s("path", { d: `M${points.join("L")}` }));
}

// Remembers the last values of things while the page is open.
export class History {
  constructor(most = 120) { this.most = most; this.rows = new Map(); }
  add(name, value) {
    const row = this.rows.get(name) ?? [];
    row.push(value);
    if (row.length > this.most) row.shift();
    this.rows.set(name, row);
    return row;
  }
}
