const make = (name, text, ...children) => {
  const node = document.createElement(name);
  if (text) node.textContent = text;
  node.append(...children);
  return node;
};
const resolve = (document_, schema) =>
  schema && schema.$ref ? document_.components.schemas[schema.$ref.split("/").pop()] : schema;
const show = (title, value) => [make("h4", title), make("pre", JSON.stringify(value, null, 2))];

function operation(document_, method, path, told) {
  const head = make("summary");
  head.append(make("b", method.toUpperCase()), make("code", path), ` ${told.summary} `);
  const role = make("span", told["x-volley-role"] || "public");
  role.className = "role";
  head.append(role);
  const more = make("div");
  more.className = "more";
  if (told.parameters) more.append(...show("Parameters", told.parameters));
  const body = told.requestBody?.content["application/json"].schema;
  if (body) more.append(...show("Body", resolve(document_, body)));
  for (const [status, answer] of Object.entries(told.responses)) {
    if (status >= 400) continue;
    const kinds = Object.entries(answer.content || {});
    if (!kinds.length) more.append(make("h4", `${status}: no body`));
    for (const [media, content] of kinds) {
      more.append(...show(`${status}: ${media}`, resolve(document_, content.schema)));
    }
  }
  return make("details", "", head, more);
}

async function load() {
  const all = document.getElementById("all");
  try {
    const answer = await fetch("openapi.json");
    const document_ = await answer.json();
    const tags = new Map();
    for (const [path, methods] of Object.entries(document_.paths)) {
      for (const [method, told] of Object.entries(methods)) {
        const tag = told.tags[0];
        if (!tags.has(tag)) tags.set(tag, []);
        tags.get(tag).push(operation(document_, method, path, told));
      }
    }
    all.replaceChildren();
    for (const [tag, operations] of tags) all.append(make("h2", tag), ...operations);
  } catch (error) {
    all.textContent = `The document could not be read: ${error.message}`;
  }
}
load();
