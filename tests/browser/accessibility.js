// Runs in the page and returns a list of problems.
() => {
  const wrong = [];
  const say = (rule, element) => wrong.push(rule + ": " + element.outerHTML.slice(0, 160));
  const seen = (element) => element.checkVisibility({ visibilityProperty: true });
  const all = (selector) => [...document.querySelectorAll(selector)].filter(seen);
  const name = (element) => (element.getAttribute("aria-label") || element.textContent || "").trim();

  if (!document.documentElement.lang) wrong.push("no language");
  if (!document.title.trim()) wrong.push("no title");
  for (const landmark of ["main", "header", "footer"])
    if (document.querySelectorAll(landmark).length !== 1) wrong.push("not one " + landmark);

  const levels = all("h1, h2, h3, h4").map((heading) => Number(heading.tagName[1]));
  if (levels.filter((level) => level === 1).length !== 1) wrong.push("not one h1");
  levels.forEach((level, k) => { if (k && level > levels[k - 1] + 1) wrong.push("a heading level is skipped"); });

  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  if (new Set(ids).size !== ids.length) wrong.push("an id occurs twice");
  for (const element of document.querySelectorAll("[aria-labelledby], [aria-describedby]"))
    for (const attribute of ["aria-labelledby", "aria-describedby"])
      for (const id of (element.getAttribute(attribute) || "").split(" ").filter(Boolean))
        if (!ids.includes(id)) say("refers to a missing id", element);

  for (const element of all("a, button, summary")) if (!name(element)) say("no name", element);
  for (const field of all("input:not([type=hidden]), select, textarea"))
    if (!field.labels.length) say("no label", field);
  for (const image of document.querySelectorAll("img")) if (!image.hasAttribute("alt")) say("no alt", image);
  for (const drawing of all("svg"))
    if (!drawing.closest("[role=img][aria-label]")) say("an image without a text alternative", drawing);
  for (const table of document.querySelectorAll("table"))
    if (!table.querySelector("thead th[scope=col]")) say("a table without headers", table);
  for (const link of all("a")) if (/^(here|click here|more)$/i.test(name(link))) say("the link text is meaningless", link);

  const numbers = (colour) => colour.match(/[\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = numbers(getComputedStyle(e).backgroundColor);
      if (colour.length < 4 || colour[3] > 0.99) return colour;
    }
    return [255, 255, 255];
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const checked = new Set();
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.textContent.trim() || checked.has(element) || !seen(element)) continue;
    if (element.closest(".unseen, .skip, noscript, svg")) continue;
    checked.add(element);
    const style = getComputedStyle(element), size = parseFloat(style.fontSize);
    const [high, low] = [light(numbers(style.color)), light(behind(element))].sort((a, b) => b - a);
    const needed = size >= 24 || (size >= 18.66 && style.fontWeight >= 700) ? 3 : 4.5;
    if ((high + 0.05) / (low + 0.05) < needed) say("contrast " + ((high + 0.05) / (low + 0.05)).toFixed(2), element);
  }
  if (document.documentElement.scrollWidth > document.documentElement.clientWidth) wrong.push("scrolls sideways");
  return { wrong, checked: checked.size };
}
