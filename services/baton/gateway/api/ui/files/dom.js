// Elements and numbers, for all parts of the page.

const SVG = "http://www.w3.org/2000/svg";

/** Return the element of an id. */
export const byId = (id) => document.getElementById(id);

/** Return an element of the page. Text is never read as markup. */
export function html(tag, { text = "", ...attributes } = {}, ...children) {
  return filled(document.createElement(tag), text, attributes, children);
}

/** Return an element of a picture. */
export function svg(tag, { text = "", ...attributes } = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), text, attributes, children);
}

function filled(element, text, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== "") element.textContent = text;
  element.append(...children);
  return element;
}

/** Return a copy of what a template holds. */
export const stamp = (id) => byId(id).content.firstElementChild.cloneNode(true);

/** Set the text of what `selector` finds in an element, which is left alone where it says so already. */
export function put(element, selector, text) {
  const place = element.querySelector(selector);
  if (place.textContent !== String(text)) place.textContent = text;
  return place;
}

/** Place a bar over part of its track, both as shares of it. */
export function span(bar, start, share) {
  bar.style.left = `${100 * start}%`;
  bar.style.width = `${100 * share}%`;
}

/** Let a parent have one child per item, in their order; a child stays while its key does, and with it focus and what is open. */
export function sync(parent, items, keyOf, make, fill) {
  const keys = new Set(items.map(keyOf));
  for (const child of [...parent.children]) if (!keys.has(child.dataset.key)) child.remove();
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  items.forEach((item, index) => {
    const child = known.get(keyOf(item)) ?? make(item);
    child.dataset.key = keyOf(item);
    if (parent.children[index] !== child) parent.insertBefore(child, parent.children[index] ?? null);
    fill(child, item);
  });
}

/** Return seconds with a unit that suits them. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds === 0) return "0";
  if (seconds < 0.0009995) return `${Math.round(seconds * 1e6)}\u00a0µs`;
  if (seconds < 0.9995) return `${(seconds * 1e3).toPrecision(3)}\u00a0ms`;
  return `${seconds.toFixed(seconds < 10 ? 2 : 1)}\u00a0s`;
}

/** Return how long something is ago, for people. */
export const age = (seconds) => (seconds < 100 ? `${Math.round(seconds)} s` : `${Math.round(seconds / 60)} min`);

/** Return a number with a unit and its prefix, such as "1.2 GB". */
export function amount(value, unit) {
  const prefixes = ["", "k", "M", "G", "T", "P"];
  let index = 0;
  while (value >= 999.5 && index < prefixes.length - 1) {
    value /= 1000;
    index += 1;
  }
  return `${value >= 100 || Number.isInteger(value) ? Math.round(value) : value.toPrecision(3)}\u00a0${prefixes[index]}${unit}`;
}

/** Return a count with its noun, such as "1 node" and "2 nodes". */
export const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
