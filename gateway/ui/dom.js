// Elements without markup in strings: nothing that a server or a model says can become markup.

const SVG = "http://www.w3.org/2000/svg";

export function h(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

export function s(tag, properties = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && !(element instanceof SVGElement) && !name.includes("-")) element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

// Writes only what differs, so that a quiet figure costs nothing and a screen reader is not woken.
export function say(element, text) {
  const value = String(text);
  if (element.textContent !== value) element.textContent = value;
}

export function mark(element, name, value) {
  if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

// Of buttons that take turns at one place one is shown; the focus stays at that place.
export function showOnly(shown, buttons) {
  const focused = buttons.includes(document.activeElement);
  for (const button of buttons) button.hidden = button !== shown;
  if (focused && shown && document.activeElement !== shown) shown.focus();
}

// Keeps the children of `parent` in step with `items`: elements are kept by key, so focus and selection stay.
export function sync(parent, items, keyOf, make, update) {
  const known = new Map([...parent.children].filter((child) => child.made).map((child) => [child.made.key, child]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let element = known.get(key);
    if (element) known.delete(key);
    else {
      element = make(item);
      element.made = { ...element.made, key };
    }
    update(element, item);
    if (element === place) place = place.nextElementSibling;
    else parent.insertBefore(element, place);
  }
  for (const left of known.values()) left.remove();
}
