// What changes something: a dialog says what it does and shows the request as curl; it runs when the person agrees.

import { h } from "./dom.js";
import { curl, me, send } from "./api.js";

// Ask, then send. `typed`: a word that must be typed first. Resolves to the answer, or null when it was left.
export function act({ title, explain, method, path, body, typed, button = "Do it", danger = false }) {
  return new Promise((resolve) => {
    const error = h("p.error", { role: "alert" });
    const go = h(danger ? "button.danger" : "button", { type: "submit", disabled: Boolean(typed) }, button);
    const word = typed ? h("input", { name: "typed", autocomplete: "off", spellcheck: "false", oninput: (event) => { go.disabled = event.target.value !== typed; } }) : null;
    let answer = null;
    const dialog = h("dialog", { "aria-labelledby": "act-title" },
      h("form", { method: "dialog", onsubmit: run },
        h("h2", { id: "act-title" }, title),
        explain ?? null,
        h("details.curl", { open: true }, h("summary", {}, "The same as a command"), h("pre", {}, curl(method, path, body))),
        typed ? h("label", {}, h("span", {}, "To go on, type ", h("b", {}, typed)), word) : null,
        error,
        h("div.buttons", {}, h("button.plain", { type: "button", onclick: () => dialog.close() }, "Cancel"), go)));
    async function run(event) {
      event.preventDefault();
      go.disabled = true;
      try {
        answer = await send(method, path, body);
        dialog.close();
      } catch (problem) {
        error.textContent = `${problem.message}${problem.outcome === "unknown" ? " It may have taken effect: look before you repeat it." : ""}`;
        go.disabled = false;
      }
    }
    dialog.addEventListener("close", () => { dialog.remove(); resolve(answer); });
    document.body.append(dialog);
    dialog.showModal();
    (word ?? go).focus();
  });
}

// A button that is not there for who may only look.
export function doer(text, attributes, kind = "plain") {
  return h(`button.${kind}`, { type: "button", ...attributes, disabled: me.read_only || attributes.disabled, title: me.read_only ? "this session is read-only" : attributes.title }, text);
}

let noticeTimer = 0;
export function notice(text) {
  let shown = document.getElementById("notice");
  if (!shown) {
    shown = h("div", { id: "notice", role: "status" });
    document.body.append(shown);
  }
  shown.textContent = text;
  shown.hidden = false;
  clearTimeout(noticeTimer);
  noticeTimer = setTimeout(() => { shown.hidden = true; }, 6000);
}

export function tabs(names, chosen, link, label) {
  return h("nav.tabs", { "aria-label": label }, names.map((name) => h("a", { href: link(name), "aria-current": name === chosen ? "true" : undefined }, name)));
}

// One page of a long list, and the buttons that turn it. `view.from` is kept by the page; a shorter list begins anew.
export function paged(rows, view, context, size) {
  if (view.from >= rows.length) view.from = 0;
  const turn = (text, from) => h("button.plain", { type: "button", disabled: from < 0 || from >= rows.length, onclick: () => { view.from = from; context.render(); } }, text);
  const buttons = rows.length > size ? [turn("Previous", view.from - size), turn("Next", view.from + size)] : null;
  return { rows: rows.slice(view.from, view.from + size), buttons };
}

export const field = (label, input, more) => h("label", {}, h("span", {}, label), input, more ?? null);
