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

/** Return seconds with a unit that suits them. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toPrecision(3)} ms`;
  return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
}

/** Return a number with a unit and its prefix, such as "1.2 GB". */
export function amount(value, unit) {
  const prefixes = ["", "k", "M", "G", "T", "P"];
  let index = 0;
  while (value >= 1000 && index < prefixes.length - 1) {
    value /= 1000;
    index += 1;
  }
  return `${value >= 100 || Number.isInteger(value) ? Math.round(value) : value.toPrecision(2)} ${prefixes[index]}${unit}`;
}
