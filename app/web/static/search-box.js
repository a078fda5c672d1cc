// A search dialog for any page: <script src=".../static/search-box.js" data-domain="site.example" defer></script>
// It opens at an input or button of the page, or by a key, and shows hits as a person types.
// data-domain: sites, with commas between; without it all. data-input: a selector of the inputs and buttons.
"use strict";

(() => {
  const script = document.currentScript;
  const server = new URL(script.src).origin;
  const { domain = "", input: selector = "input[type=search]" } = script.dataset;
  const pause = 150; // Milliseconds without a keystroke before the request.
  const most = 6;
  const recentKey = "perennial.recent";
  const keysKey = "perennial.slash";
  const mac = /Mac|iP/.test(navigator.platform);

  const style = new CSSStyleSheet(); // Not a style element: a content security policy may forbid these.
  style.replaceSync(`
    :host { all: initial !important; color-scheme: inherit !important; }
    * { box-sizing: border-box; }
    dialog {
      flex-flow: column; width: min(42rem, 100vw - 2rem); max-height: 80vh; margin: 10vh auto auto; padding: 0;
      overflow: hidden; overflow-wrap: anywhere; border: 1px solid GrayText; border-radius: 8px;
      background: Canvas; color: CanvasText; font: 1rem/1.4 system-ui, sans-serif;
    }
    dialog[open] { display: flex; }
    dialog::backdrop { background: rgb(0 0 0 / 50%); }
    form { display: flex; gap: 0.5rem; padding: 0.75rem; }
    input[type=search] {
      flex: 1; min-width: 0; padding: 0.5rem; border: 1px solid GrayText; border-radius: 4px;
      background: Field; color: FieldText; font: inherit;
    }
    button { padding: 0.25rem 0.75rem; font: inherit; }
    :focus-visible, [aria-selected=true] { outline: 2px solid LinkText; outline-offset: -2px; }
    p { margin: 0; padding: 0.5rem 0.75rem; }
    p:empty { display: none; }
    p, label, span { font-size: 0.875rem; }
    [role=listbox] { flex: 1; overflow: auto; overscroll-behavior: contain; }
    [role=option] { display: block; padding: 0.5rem 0.75rem; color: inherit; text-decoration: none; cursor: pointer; }
    [role=option]:hover { text-decoration: underline; }
    .section { margin-inline-start: 1.5rem; border-inline-start: 2px solid GrayText; }
    b { color: LinkText; }
    span { display: block; }
    mark { background: none; color: inherit; font-weight: 700; }
    .keys { display: flex; flex-wrap: wrap; align-items: center; gap: 0 1rem; border-top: 1px solid GrayText; }
    kbd { border: 1px solid GrayText; border-radius: 3px; padding: 0 0.25rem; font: inherit; }
    @media (max-width: 40rem) {
      dialog { width: 100vw; max-width: none; height: 100dvh; max-height: none; margin: 0; border: 0; border-radius: 0; }
    }
    @media (hover: none) { .keys { display: none; } }
  `);

  const box = element("input", { type: "search", autocomplete: "off", autocapitalize: "none", spellcheck: false });
  Object.assign(box, { role: "combobox", ariaLabel: "Search", ariaAutoComplete: "list", maxLength: 255, enterKeyHint: "search" });
  box.setAttribute("aria-controls", "found");
  const status = element("p", { role: "status" });
  const list = element("div", { role: "listbox", id: "found", ariaLabel: "Results" });
  const keys = element("input", { type: "checkbox", checked: stored(keysKey) !== "off" });
  const dialog = element("dialog", { ariaLabel: "Search" });
  const form = element("form", { method: "dialog" }, box, element("button", {}, "Close"));
  const key = (text) => element("kbd", {}, text);
  const help = element("p", {}, key("↑"), " ", key("↓"), " choose, ", key("Enter"), " opens, ", key("Esc"), " closes");
  const shortcuts = element("label", {}, keys, " The keys ", key(mac ? "⌘K" : "Ctrl+K"), " and ", key("/"), " open it");
  dialog.append(form, status, list, element("div", { className: "keys" }, help, shortcuts));
  const host = document.createElement("perennial-search-box");
  const root = host.attachShadow({ mode: "open" });
  root.adoptedStyleSheets = [style];
  root.append(dialog);
  document.body.append(host);

  let active = -1;
  let timer = 0;
  let pending = new AbortController();
  let opener = null;

  for (const each of document.querySelectorAll(selector)) {
    each.ariaHasPopup = "dialog";
    each.addEventListener("click", () => open(each));
    if (each.localName !== "input") continue;
    each.autocomplete = "off";
    // Not with the focus alone: the Tab key must pass by.
    each.addEventListener("input", (event) => event.isComposing || open(each));
    each.addEventListener("compositionend", () => open(each));
    each.addEventListener("keydown", (event) => {
      if (!["Enter", "ArrowDown"].includes(event.key) || event.isComposing) return;
      event.preventDefault();
      open(each);
    });
  }

  addEventListener("keydown", (event) => {
    const { key: pressed, altKey, ctrlKey, metaKey, shiftKey } = event;
    const chord = pressed.toLowerCase() === "k" && (mac ? metaKey : ctrlKey) && !altKey && !shiftKey;
    const typing = event.composedPath()[0].closest?.("input, textarea, select, [contenteditable]");
    const single = pressed === "/" && !altKey && !ctrlKey && !metaKey && !typing;
    // Speech input can press keys by accident, so that the keys can be turned off (WCAG 2.1.4).
    if (dialog.open || !keys.checked || !(chord || single)) return;
    event.preventDefault();
    open(document.querySelector(selector));
  });
  keys.addEventListener("change", () => store(keysKey, keys.checked ? "on" : "off"));
  box.addEventListener("input", () => {
    forget();
    if (box.value.trim().length < 2) showRecent();
    else timer = setTimeout(search, pause);
  });
  box.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) move(step);
    else if (event.key === "Escape") dialog.close(); // By itself, the key would only empty the box.
    else if (event.key !== "Enter") return;
    else if (active >= 0) list.children[active].click();
    else if (box.value.trim()) {
      remember();
      location.assign(resultsUrl());
    }
    event.preventDefault();
  });
  // The focus stays in the box.
  list.addEventListener("mousedown", (event) => event.preventDefault());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  dialog.addEventListener("close", () => {
    forget();
    if (opener?.localName === "input") opener.value = box.value;
    opener?.focus({ preventScroll: true });
  });

  function open(from) {
    if (dialog.open) return;
    opener = from;
    if (from?.localName === "input") box.value = from.value;
    show("", []);
    dialog.showModal();
    box.focus();
    box.dispatchEvent(new Event("input"));
  }

  function move(step) {
    const number = list.children.length + 1;
    if (active >= 0) list.children[active].ariaSelected = "false";
    active = ((active + 1 + step + number) % number) - 1; // Past either end is the box.
    const chosen = list.children[active];
    box.setAttribute("aria-activedescendant", chosen?.id ?? "");
    if (!chosen) return;
    chosen.ariaSelected = "true";
    chosen.scrollIntoView({ block: "nearest" });
  }

  function resultsUrl() {
    const sites = domain.split(",").map((site) => ["domain", site.trim()]);
    return `${server}/?${new URLSearchParams([...sites.filter(([, site]) => site), ["q", box.value]])}`;
  }

  function forget() {
    clearTimeout(timer);
    pending.abort();
  }

  async function search() {
    pending = new AbortController();
    const { signal } = pending;
    const parameters = new URLSearchParams({ ...(domain && { domain }), q: box.value, limit: most });
    const options = { signal, credentials: "omit", referrerPolicy: "no-referrer" };
    let found;
    try {
      const reply = await fetch(`${server}/api/v1/search?${parameters}`, options);
      if (reply.ok) found = await reply.json();
    } catch {
      // Shown below, unless a newer request replaced this one.
    }
    if (signal.aborted) return;
    if (found) showFound(found);
    else show("No reply from the search. Enter opens its page.", []);
  }

  function showFound(found) {
    const number = `${found.estimated ? "About " : ""}${found.total} result${found.total === 1 ? "" : "s"}`;
    const words = found.corrected ? ` for “${found.corrected}”` : found.relaxed ? " with some of the words" : "";
    const pages = new Map();
    for (const hit of found.hits) pages.set(hit.url, [...(pages.get(hit.url) ?? []), hit]);
    const shown = [...pages.values()].filter(([hit]) => /^https?:/i.test(hit.url)).flatMap(page);
    if (found.total) shown.push(option(resultsUrl(), element("b", {}, "All results")));
    show(found.total ? `${number}${words}` : "No result", shown);
  }

  // A page, and below it its sections that match.
  function page(hits) {
    const [{ url, title, path, lang }] = hits;
    const name = title || path;
    const texts = hits.filter((hit) => !hit.opens_at).map(snippet);
    const shown = new Map([[url, option(url, element("b", {}, name), ...texts)]]);
    const add = (section, ...text) => {
      if (shown.has(section.url)) return;
      const made = option(section.url, element("b", {}, section.heading), ...text);
      made.className = "section";
      made.setAttribute("aria-description", `Section of ${name}`);
      shown.set(section.url, made);
    };
    for (const hit of hits) if (hit.opens_at) add(hit.opens_at, snippet(hit));
    for (const hit of hits) hit.subsections.forEach((section) => add(section));
    for (const made of shown.values()) {
      made.dir = "auto";
      if (lang) made.lang = lang;
    }
    return [...shown.values()];
  }

  function snippet(hit) {
    const text = element("span");
    const characters = Array.from(hit.snippet); // The ranges count code points.
    let at = 0;
    for (const [start, end] of hit.marks) {
      text.append(characters.slice(at, start).join(""), element("mark", {}, characters.slice(start, end).join("")));
      at = end;
    }
    text.append(characters.slice(at).join(""));
    return text;
  }

  function option(url, ...content) {
    const made = element("a", { role: "option", href: url, rel: "noreferrer", tabIndex: -1 }, ...content);
    made.addEventListener("click", remember);
    return made;
  }

  function show(text, shown) {
    active = -1;
    box.setAttribute("aria-activedescendant", "");
    shown.forEach((each, at) => Object.assign(each, { id: `option-${at}`, ariaSelected: "false" }));
    list.replaceChildren(...shown);
    list.scrollTop = 0;
    box.ariaExpanded = String(shown.length > 0);
    status.textContent = text;
  }

  // They stay in the visitor's browser.

  function recent() {
    try {
      return JSON.parse(stored(recentKey) ?? "[]").filter((text) => typeof text === "string");
    } catch {
      return [];
    }
  }

  function remember() {
    const q = box.value.trim();
    if (q) store(recentKey, JSON.stringify([q, ...recent().filter((text) => text !== q)].slice(0, 5)));
  }

  function showRecent() {
    const choices = recent().map((text) => choice(text, () => (box.value = text)));
    if (choices.length) choices.push(choice("Delete recent searches", () => store(recentKey, "[]")));
    show(choices.length ? "Recent searches" : "", choices);
  }

  function choice(text, act) {
    const made = element("div", { role: "option", dir: "auto" }, text);
    made.addEventListener("click", () => {
      act();
      box.dispatchEvent(new Event("input"));
    });
    return made;
  }

  // A browser may refuse to store.

  function stored(name) {
    try {
      return localStorage.getItem(name);
    } catch {
      return null;
    }
  }

  function store(name, value) {
    try {
      localStorage.setItem(name, value);
    } catch {}
  }

  function element(name, properties = {}, ...content) {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...content);
    return made;
  }
})();
