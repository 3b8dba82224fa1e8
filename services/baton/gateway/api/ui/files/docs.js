// The OpenAPI document for people: every path, and every object with its fields.

const make = (tag, attributes, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
};
const row = (code, ...text) => make("tr", {}, make("td", {}, make("code", {}, code)), make("td", {}, ...text));

/** Return what a value may be, with links to objects. */
function kinds(schema) {
  const name = schema.$ref?.split("/").at(-1);
  if (name) return [make("a", { href: `#${name}` }, name)];
  if (schema.anyOf) return schema.anyOf.flatMap((part, index) => (index ? [" or ", ...kinds(part)] : kinds(part)));
  if (schema.enum) return [schema.enum.map((value) => JSON.stringify(value)).join(" or ")];
  if (schema.type === "array") return ["array of (", ...kinds(schema.items ?? {}), ")"];
  return [[schema.type ?? "anything"].flat().join(" or ")];
}

const api = await (await fetch("/openapi.json")).json();
document.title = document.querySelector("h1").textContent = `${api.info.title} ${api.info.version}`;
for (const [path, methods] of Object.entries(api.paths)) {
  for (const [method, { summary, requestBody }] of Object.entries(methods)) {
    const body = requestBody?.content?.["application/json"];
    document.getElementById("operations").append(row(`${method.toUpperCase()} ${path}`, summary, ...(body ? ["; takes ", ...kinds(body.schema)] : [])));
  }
}
for (const [name, schema] of Object.entries(api.components.schemas).sort()) {
  const fields = Object.entries(schema.properties ?? {}).map(([field, part]) => row(field, ...kinds(part)));
  document.getElementById("objects").append(make("h3", { id: name }, name), schema.description ?? "", make("table", {}, ...fields));
}
document.getElementById(location.hash.slice(1))?.scrollIntoView();
