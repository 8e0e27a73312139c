// The HTTP API as a page, from the gateway's own OpenAPI document.

import { h, table } from "./dom.js";
import { get, curl, query } from "./api.js";
import { field } from "./act.js";

const view = { text: "" };
const METHODS = ["get", "post", "patch", "delete"];

const nameOf = (ref) => ref.split("/").at(-1);

// A schema in one line: {name: text, partitions: 1 to 10,000}.
function shape(schema, schemas, depth = 0) {
  if (!schema || depth > 3) return "…";
  if (schema.$ref) return shape(schemas[nameOf(schema.$ref)], schemas, depth + 1);
  if (schema.oneOf) return schema.oneOf.map((one) => shape(one, schemas, depth + 1)).join(" or ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  if (schema.type === "array") return `[${shape(schema.items, schemas, depth + 1)}, …]`;
  if (schema.properties) {
    const required = new Set(schema.required ?? []);
    return `{${Object.entries(schema.properties).map(([name, one]) => `${name}${required.has(name) ? "" : "?"}: ${shape(one, schemas, depth + 1)}`).join(", ")}}`;
  }
  return [schema.type].flat().join(" or ");
}

function operation(method, path, row, schemas) {
  const body = row.requestBody?.content["application/json"].schema;
  const [status, answer] = Object.entries(row.responses).find(([code]) => code !== "default");
  const media = Object.entries(answer.content ?? {})[0];
  const filled = query(path, Object.fromEntries(row.parameters.filter((one) => one.in === "query").slice(0, 1).map((one) => [one.name, "…"])));
  return h("details.operation", { "data-key": `${method} ${path}` },
    h("summary", {}, h("b", {}, method.toUpperCase()), " ", h("code", {}, path), h("span.soft", {}, ` ${row.summary}`)),
    row.parameters.length ? table(["parameter", "in", "is", "means"], row.parameters.map((one) => [h("code", {}, one.name), one.in, shape(one.schema, schemas), one.description ?? ""]), { caption: "Parameters" }) : null,
    body ? h("p", {}, "Body: ", h("code", {}, shape(body, schemas))) : null,
    h("p", {}, `Answer ${status}`, media ? [`, ${media[0]}: `, h("code", {}, shape(media[1].schema, schemas))] : ""),
    h("pre", {}, curl(method.toUpperCase(), filled, body ? {} : undefined)));
}

export const referencePage = {
  path: "api", title: "API",
  load: () => get("/v1/openapi.json"),
  show: (document, _route, context) => {
    const groups = new Map();
    for (const [path, row] of Object.entries(document.paths)) {
      for (const method of METHODS) {
        if (!row[method] || !`${method} ${path} ${row[method].summary}`.includes(view.text)) continue;
        const tag = row[method].tags[0];
        groups.set(tag, [...(groups.get(tag) ?? []), operation(method, path, row[method], document.components.schemas)]);
      }
    }
    return [
      h("h1", {}, "HTTP API"),
      h("p.soft", {}, "Every page of this console sends these requests and no others. As a document: ", h("a", { href: "/v1/openapi.json" }, "/v1/openapi.json"), " (OpenAPI 3.1). Errors are problem documents: ", h("code", {}, shape(document.components.schemas.Problem, {}))),
      h("div.toolbar", {}, field("Contains", h("input", { type: "search", value: view.text, oninput: (event) => { view.text = event.target.value; context.render(); } }))),
      [...groups].sort(([one], [other]) => (one < other ? -1 : 1)).map(([tag, rows]) => h("section", { "data-key": tag }, h("h2", {}, tag), rows)),
    ];
  },
};
