// Signing in: a user and password, or a token. The gateway keeps them; the browser gets a cookie that scripts cannot read.

import { h } from "./dom.js";
import { signIn } from "./api.js";

let failed = "";

export function signInPage(entered) {
  async function submit(event) {
    event.preventDefault();
    const form = new FormData(event.target);
    const credentials = form.get("token") ? { token: form.get("token") } : { user: form.get("user"), password: form.get("password") };
    const button = event.target.querySelector("button");
    button.disabled = true;
    try {
      await signIn({ ...credentials, read_only: form.get("read_only") === "on" });
      failed = "";
      await entered();
    } catch (error) {
      failed = error.status === 401 ? "Wrong user or password." : error.message;
      const note = document.getElementById("sign-in-error");
      note.textContent = failed;
      button.disabled = false;
    }
  }
  return h("form.sign-in.card", { onsubmit: submit, "aria-labelledby": "sign-in-title" },
    h("h1", { id: "sign-in-title" }, "Sign in"),
    h("p.soft", {}, "With the user that you have at this mesh. You may see and do here what that user may."),
    h("label", {}, "User", h("input", { name: "user", autocomplete: "username", autocapitalize: "none", spellcheck: "false" })),
    h("label", {}, "Password", h("input", { name: "password", type: "password", autocomplete: "current-password" })),
    h("details", {}, h("summary", {}, "Sign in with a token instead"),
      h("label", {}, "Token", h("input", { name: "token", type: "password", autocomplete: "off" }))),
    h("label.check", {}, h("input", { name: "read_only", type: "checkbox" }), "Only look: nothing can be changed"),
    h("p.error", { id: "sign-in-error", role: "alert" }, failed),
    h("button", { type: "submit" }, "Sign in"));
}
