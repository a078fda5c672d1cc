// A search dialog for any page: <script src=".../static/search-box.js" data-domain="site.example" defer></script>
// It opens at an input or button of the page, or by a key, and shows what Perennial finds as a person types. Without it
// the input works as before.
// data-domain: the sites to search, with commas between; without it all. data-input: a selector of the inputs and buttons.
"use strict";

(() => {
  const script = document.currentScript;
  const server = new URL(script.src).origin;
  const { domain = "", input: selector = "input[type=search]" } = script.dataset;
  const pause = 150; // Milliseconds without a keystroke before the request.
  const most = 6;
  const recentKey = "perennial.recent";
  const slashKey = "perennial.slash";
  const mac = /Mac|iP/.test(navigator.platform);

  const style = new CSSStyleSheet(); // Not a style element: a content security policy may forbid these.
  style.replaceSync(`
    :host { all: initial !important; color-scheme: inherit !important; }
    * { box-sizing: border-box; }
    dialog {
      flex-direction: column;
      width: min(42rem, 100vw - 2rem);
      max-height: 80vh;
      margin: 10vh auto auto;
      padding: 0;
      overflow: hidden;
      border: 1px solid GrayText;
      border-radius: 8px;
      background: Canvas;
      color: CanvasText;
      font: 1rem/1.4 system-ui, sans-serif;
      overflow-wrap: anywhere;
    }
    dialog[open] { display: flex; }
    dialog::backdrop { background: rgb(0 0 0 / 50%); }
    form { display: flex; gap: 0.5rem; padding: 0.75rem; border-bottom: 1px solid GrayText; }
    input[type=search] {
      flex: 1;
      min-width: 0;
      padding: 0.5rem;
      border: 1px solid GrayText;
      border-radius: 4px;
      background: Field;
      color: FieldText;
      font: inherit;
      appearance: none;
    }
    button { padding: 0.25rem 0.75rem; font: inherit; font-size: 0.875rem; }
    :focus-visible { outline: 2px solid Highlight; outline-offset: 1px; }
    p { margin: 0; padding: 0.5rem 0.75rem; font-size: 0.875rem; }
    p:empty, [role=listbox]:empty { display: none; }
    [role=listbox] { flex: 1; overflow: auto; overscroll-behavior: contain; }
    [role=option] { display: block; padding: 0.5rem 0.75rem; color: inherit; text-decoration: none; cursor: pointer; }
    [role=option].section { margin-inline-start: 1.5rem; border-inline-start: 2px solid GrayText; padding-block: 0.25rem; }
    [role=option]:hover { text-decoration: underline; }
    [aria-selected=true] { outline: 2px solid Highlight; outline-offset: -2px; }
    strong { color: LinkText; font-weight: 600; }
    .section strong { font-weight: 400; }
    span { display: block; font-size: 0.875rem; }
    mark { background: none; color: inherit; font-weight: 700; }
    footer { display: flex; flex-wrap: wrap; align-items: center; gap: 0 1rem; border-top: 1px solid GrayText; }
    label { font-size: 0.875rem; }
    kbd { border: 1px solid GrayText; border-radius: 3px; padding: 0 0.25rem; font: inherit; }
    @media (max-width: 40rem) {
      dialog { width: 100vw; max-width: none; height: 100dvh; max-height: none; margin: 0; border: 0; border-radius: 0; }
    }
    @media (hover: none) { footer { display: none; } }
  `);

  const box = element("input", { type: "search", autocomplete: "off", enterKeyHint: "search", maxLength: 255 });
  for (const [name, value] of Object.entries({
    role: "combobox",
    "aria-label": "Search",
    "aria-autocomplete": "list",
    "aria-expanded": "false",
    "aria-controls": "found",
    autocapitalize: "none",
    spellcheck: "false",
  })) {
    box.setAttribute(name, value);
  }
  const status = element("p", { role: "status" });
  const list = element("div", { role: "listbox", id: "found", ariaLabel: "Results" });
  const slash = element("input", { type: "checkbox", checked: stored(slashKey) !== "off" });
  const dialog = element("dialog", { ariaLabel: "Search" });
  const form = element("form", {}, box, element("button", { type: "submit" }, "Close"));
  form.method = "dialog"; // Its button closes the dialog.
  const keys = element("p", {}, key("↑"), " ", key("↓"), " choose, ", key("Enter"), " opens, ", key("Esc"), " closes");
  const shortcuts = element("label", {}, slash, " The keys ", key(mac ? "⌘K" : "Ctrl+K"), " and ", key("/"), " open it");
  dialog.append(form, status, list, element("footer", {}, keys, shortcuts));
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
    each.setAttribute("aria-haspopup", "dialog");
    each.addEventListener("click", () => open(each));
    if (!("value" in each) || each.localName === "button") continue;
    each.autocomplete = "off";
    // Not as soon as it has the focus: who only passes by with the Tab key would not get on.
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
    const single = pressed === "/" && !altKey && !ctrlKey && !metaKey && !event.composedPath()[0].closest?.("input, textarea, select, [contenteditable]");
    // Speech input can press keys by accident, so that the keys can be turned off (WCAG 2.1.4).
    if (dialog.open || !slash.checked || !(chord || single)) return;
    event.preventDefault();
    open(document.querySelector(selector));
  });
  slash.addEventListener("change", () => store(slashKey, slash.checked ? "on" : "off"));
  box.addEventListener("input", () => {
    forget();
    if (box.value.trim().length < 2) showRecent();
    else timer = setTimeout(search, pause);
  });
  box.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) move(step);
    else if (event.key === "Enter" && options()[active]) options()[active].click();
    else if (event.key === "Enter" && box.value.trim()) leave(resultsUrl());
    else if (event.key !== "Enter") return;
    event.preventDefault();
  });
  // Between pressing and releasing, the focus stays in the box.
  list.addEventListener("mousedown", (event) => event.preventDefault());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  dialog.addEventListener("close", () => {
    forget();
    if (opener && "value" in opener && opener.localName === "input") opener.value = box.value;
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

  function options() {
    return [...list.querySelectorAll("[role=option]")];
  }

  function move(step) {
    const all = options();
    all[active]?.setAttribute("aria-selected", "false");
    active = ((active + 1 + step + all.length + 1) % (all.length + 1)) - 1; // Past either end is the box.
    const option = all[active];
    option?.setAttribute("aria-selected", "true");
    option?.scrollIntoView({ block: "nearest" });
    if (option) box.setAttribute("aria-activedescendant", option.id);
    else box.removeAttribute("aria-activedescendant");
  }

  function parameters() {
    return new URLSearchParams([...(domain ? [["domain", domain]] : []), ["q", box.value]]);
  }

  function resultsUrl() {
    const sites = domain.split(",").filter((site) => site.trim());
    return `${server}/?${new URLSearchParams([...sites.map((site) => ["domain", site.trim()]), ["q", box.value]])}`;
  }

  function leave(url) {
    remember();
    location.assign(url);
  }

  function forget() {
    clearTimeout(timer);
    pending.abort();
  }

  async function search() {
    pending = new AbortController();
    const { signal } = pending;
    let found = null;
    try {
      const reply = await fetch(`${server}/api/v1/search?${parameters()}&limit=${most}`, {
        signal,
        credentials: "omit",
        referrerPolicy: "no-referrer",
      });
      found = reply.ok ? await reply.json() : null;
    } catch {
      // Shown below, unless a newer request replaced this one.
    }
    if (signal.aborted) return;
    if (found) showFound(found);
    else show("No reply from the search. Enter opens its page.", []);
  }

  function showFound(found) {
    const number = found.capped ? `More than ${found.total} pages` : found.total === 1 ? "1 page" : `${found.total} pages`;
    const words = found.corrected ? ` for “${found.corrected}”` : found.relaxed ? " with some of the words" : "";
    const pages = Map.groupBy ? Map.groupBy(found.hits, (hit) => hit.url) : grouped(found.hits);
    const shown = [...pages.values()].filter(([hit]) => /^https?:/i.test(hit.url)).flatMap(page);
    if (found.total) shown.push(option(resultsUrl(), element("strong", {}, "All results")));
    show(found.total ? `${number}${words}` : "No page found", shown);
  }

  // A page, and below it its sections that match.
  function page(hits) {
    const [first] = hits;
    const whole = hits.find((hit) => !hit.opens_at);
    const title = element("strong", {}, first.title || first.path);
    const shown = [option(whole || !first.opens_at ? first.url : first.opens_at.url, title, ...(whole ? [snippet(whole)] : []))];
    const sections = hits.flatMap((hit) => [
      ...(hit.opens_at ? [[hit.opens_at, snippet(hit)]] : []),
      ...hit.subsections.map((section) => [section]),
    ]);
    shown[0].href = first.url;
    for (const [{ heading, url }, ...text] of sections) {
      const made = option(url, element("strong", {}, heading), ...text);
      made.classList.add("section");
      made.ariaDescription = `Section of ${first.title || first.path}`;
      shown.push(made);
    }
    for (const made of shown) {
      made.dir = "auto";
      if (first.lang) made.lang = first.lang;
    }
    return shown;
  }

  function grouped(hits) {
    const pages = new Map();
    for (const hit of hits) pages.set(hit.url, [...(pages.get(hit.url) ?? []), hit]);
    return pages;
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
    box.removeAttribute("aria-activedescendant");
    shown.forEach((each, at) => {
      each.id = `option-${at}`;
      each.setAttribute("aria-selected", "false");
    });
    list.replaceChildren(...shown);
    list.scrollTop = 0;
    box.setAttribute("aria-expanded", String(shown.length > 0));
    status.textContent = text;
  }

  // Recent searches stay in the visitor's browser.

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
    const texts = recent();
    const choices = texts.map((text) => choice(text, () => (box.value = text)));
    if (texts.length) choices.push(choice("Delete recent searches", () => store(recentKey, "[]")));
    show(texts.length ? "Recent searches" : "", choices);
  }

  function choice(text, act) {
    const made = element("div", { role: "option" }, text);
    made.addEventListener("click", () => {
      act();
      box.dispatchEvent(new Event("input"));
    });
    return made;
  }

  function stored(name) {
    try {
      return localStorage.getItem(name);
    } catch {
      return null; // The browser refuses access.
    }
  }

  function store(name, value) {
    try {
      localStorage.setItem(name, value);
    } catch {
      // It lasts until the next page.
    }
  }

  function key(text) {
    return element("kbd", {}, text);
  }

  function element(name, properties = {}, ...content) {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...content);
    return made;
  }
})();
