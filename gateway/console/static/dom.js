// Elements without HTML text: h("p.soft", {title}, "text", child). `patch` turns what is shown into what shall be,
// keeping elements, focus and scroll positions. Rule: no text becomes HTML; the page's policy forbids it.

const SVG = "http://www.w3.org/2000/svg";

function make(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on") || name === "value" || name === "checked" || name === "disabled" || name === "selected") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

function named(selector, create) {
  const [tag, ...classes] = selector.split(".");
  const element = create(tag);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  return element;
}

export function h(selector, attributes, ...children) {
  return make(named(selector, (tag) => document.createElement(tag)), attributes, children);
}

export function s(selector, attributes, ...children) {
  return make(named(selector, (tag) => document.createElementNS(SVG, tag)), attributes, children);
}

const HANDLERS = ["onclick", "onsubmit", "oninput", "onchange", "onkeydown", "onmouseenter", "onmouseleave", "onfocus", "onblur", "ontoggle"];

function sameKind(one, other) {
  return one.nodeType === other.nodeType && one.nodeName === other.nodeName
    && (one.getAttribute?.("data-key") ?? "") === (other.getAttribute?.("data-key") ?? "");
}

// What a person changed stays: an opened <details>, what stands in an input.
const THEIRS = { DETAILS: ["open"], DIALOG: ["open"] };

export function patch(shown, wanted) {
  if (!sameKind(shown, wanted)) {
    shown.replaceWith(wanted);
    return wanted;
  }
  if (shown.nodeType === Node.TEXT_NODE) {
    if (shown.data !== wanted.data) shown.data = wanted.data;
    return shown;
  }
  const kept = THEIRS[shown.nodeName] ?? [];
  for (const { name } of [...shown.attributes]) if (!wanted.hasAttribute(name) && !kept.includes(name)) shown.removeAttribute(name);
  for (const { name, value } of wanted.attributes) if (shown.getAttribute(name) !== value) shown.setAttribute(name, value);
  for (const handler of HANDLERS) if (shown[handler] !== wanted[handler]) shown[handler] = wanted[handler];
  if ("disabled" in shown) shown.disabled = wanted.disabled;
  const olds = [...shown.childNodes], news = [...wanted.childNodes];
  news.forEach((child, place) => (place < olds.length ? patch(olds[place], child) : shown.append(child)));
  olds.slice(news.length).forEach((child) => child.remove());
  return shown;
}

export function fill(parent, ...children) {
  const wanted = parent.cloneNode(false);
  make(wanted, {}, children);
  return patch(parent, wanted);
}

// --- numbers and times for people ---------------------------------------------------------------

export const many = (count, noun, nouns = `${noun}s`) => `${number(count)} ${count === 1 ? noun : nouns}`;
export const number = (value) => (value === null || value === undefined ? "?" : Number(value).toLocaleString("en"));

export function ms(value) {
  if (value === null || value === undefined) return "?";
  if (value >= 120_000) return `${number(Math.round(value / 60_000))} min`;
  if (value >= 10_000) return `${(value / 1000).toFixed(0)} s`;
  if (value >= 1_000) return `${(value / 1000).toFixed(1)} s`;
  return value >= 10 || value === 0 ? `${Math.round(value)} ms` : `${value.toFixed(1)} ms`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "?";
  let size = value;
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (size < 1024 || unit === "TiB") return `${size >= 10 || unit === "B" ? Math.round(size) : size.toFixed(1)} ${unit}`;
    size /= 1024;
  }
}

export const time = (at_ms) => new Date(at_ms).toISOString().replace("T", " ").slice(0, 23);

export function age(value_ms) {
  const minutes = Math.max(0, Math.round(value_ms / 60_000));
  return minutes < 120 ? many(minutes, "minute") : minutes < 2880 ? many(Math.round(minutes / 60), "hour") : many(Math.round(minutes / 1440), "day");
}

export function badge(state, text) {
  return h(`span.badge.${state}`, {}, text);
}

export function table(columns, rows, { empty = "nothing", caption } = {}) {
  return h("div.scroll", { tabindex: "0", role: "region", "aria-label": caption ?? columns.map((c) => c.title ?? c).join(", ") },
    h("table", {},
      h("thead", {}, h("tr", {}, columns.map((c) => h(c.number ? "th.is-number" : "th", { scope: "col" }, c.title ?? c)))),
      h("tbody", {}, rows.length === 0
        ? h("tr", {}, h("td.soft", { colspan: columns.length }, empty))
        : rows.map((row) => h("tr", {}, row.map((cell, place) => h(columns[place].number ? "td.is-number" : "td", {}, cell)))))));
}
