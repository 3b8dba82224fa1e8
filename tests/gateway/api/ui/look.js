// What test_look.py measures of the page, in the page.

/** Return each line of text that is seen, with its box. */
function texts() {
  const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, element = node.parentElement;
    if (!node.textContent.trim() || !element.checkVisibility() || element.closest(".skip")) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const scroller = element.closest("#scroller, #messages")?.getBoundingClientRect();
    for (const { left, right, ...rect } of [...range.getClientRects()].map((each) => each.toJSON())) {
      const top = Math.max(rect.top, scroller?.top ?? 0), bottom = Math.min(rect.bottom, scroller?.bottom ?? Infinity);
      if (bottom - top >= 2 && right - left >= 1) found.push({ text: node.textContent.trim(), element, left, right, top, bottom });
    }
  }
  return found;
}

/** Return the texts that lie over another, and those that something else lies over. */
function overlaps() {
  const all = texts();
  return all.flatMap((a, index) => {
    const others = all.slice(index + 1).filter((b) => {
      const width = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      return width > 1 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4;
    });
    const found = others.map((b) => `${a.text} | ${b.text}`);
    const top = document.elementFromPoint((a.left + a.right) / 2, (a.top + a.bottom) / 2);
    const isSeen = top !== null && a.element.contains(top);
    return isSeen ? found : [...found, `${a.text} is behind ${top?.outerHTML.slice(0, 80)}`];
  });
}

/** Return the texts whose contrast is below 4.5 (WCAG 2.2, 1.4.3), and those below 11 px. */
function unreadable() {
  return texts().flatMap(({ text, element }) => {
    const style = getComputedStyle(element), size = parseFloat(style.fontSize);
    const own = luminance(channels(element.namespaceURI.endsWith("svg") ? style.fill : style.color));
    const other = luminance(colorBehind(element));
    const contrast = (Math.max(own, other) + 0.05) / (Math.min(own, other) + 0.05);
    return contrast >= 4.5 && size >= 11 ? [] : [`${text}: ${contrast.toFixed(2)}, ${size} px`];
  });
}

const channels = (color) => color.match(/[\d.]+/g).map(Number);

function luminance(color) {
  const [red, green, blue] = color.map((value) => value / 255)
    .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function colorBehind(element) {
  for (let each = element; each; each = each.parentElement) {
    const color = channels(getComputedStyle(each).backgroundColor);
    if (color.length === 3 || color[3] > 0) return color;
  }
  return [255, 255, 255];
}

/** Return what leaves the window at its right, and the texts that leave what they stand in. */
function tooWide() {
  const inside = (section) => section.getBoundingClientRect().right - parseFloat(getComputedStyle(section).paddingRight);
  const outside = texts().filter(({ element, right }) => right > inside(element.closest("section, header, li") ?? document.body) + 0.5);
  const seen = [...document.querySelectorAll("body *")].filter((each) => each.checkVisibility() && !each.matches(".skip"));
  const wide = seen.filter((each) => each.getBoundingClientRect().right > innerWidth + 0.5);
  return [...wide.map((each) => each.outerHTML.slice(0, 100)), ...outside.map(({ text }) => text)];
}

const nameOf = (element) => element.id || element.dataset.key || element.textContent;

/** Return what has the focus, and whether that is seen. */
function focused() {
  const style = getComputedStyle(document.activeElement);
  return [nameOf(document.activeElement), style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0];
}

/** Return all that can be used. */
function reachable() {
  const usable = document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']");
  return [...usable].filter((each) => each.checkVisibility()).map(nameOf);
}

/** Return the bars of the waterfall as seconds. */
function bars() {
  const end = Number(document.querySelector("#terms .axis").dataset.end);
  return [...document.querySelectorAll("#terms tbody tr .bar")].filter((bar) => !bar.hidden).map((bar) => {
    const row = bar.closest("tr"), box = bar.getBoundingClientRect(), track = bar.parentElement.getBoundingClientRect();
    const pixel = end / track.width, column = bar.matches(".estimate") ? "estimated_seconds" : "measured_seconds";
    return { term: row.dataset.key, column, start: (box.left - track.left) * pixel, seconds: box.width * pixel, pixel };
  });
}
