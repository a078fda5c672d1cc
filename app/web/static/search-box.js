// A search box for any page: <script src=".../static/search-box.js" data-domain="site.example" defer></script> shows
// the pages that Perennial finds below an input, as a person types. Without it the input works as before.
// data-domain: the sites to search, with commas between; without it all. data-input: a selector of the inputs.
"use strict";

(() => {
  const script = document.currentScript;
  const server = new URL(script.src).origin;
  const { domain = "", input: selector = "input[type=search]" } = script.dataset;
  const pause = 150; // Milliseconds without a keystroke before the request.
  const most = 6;

  const style = new CSSStyleSheet(); // Not a style element: a content security policy may forbid these.
  style.replaceSync(`
    :host {
      all: initial !important;
      position: absolute !important;
      z-index: 2147483647 !important;
      left: var(--left) !important;
      top: var(--top) !important;
      width: min(max(var(--width), 20rem), calc(100vw - 1rem)) !important;
      color-scheme: inherit !important;
      font: 1rem/1.4 system-ui, sans-serif !important;
    }
    * { box-sizing: border-box; }
    [hidden] { display: none !important; }
    div {
      max-height: 70vh;
      overflow: auto;
      border: 1px solid GrayText;
      border-radius: 6px;
      background: Canvas;
      color: CanvasText;
      overflow-wrap: anywhere;
    }
    ul { margin: 0; padding: 0; list-style: none; }
    a { display: block; padding: 0.5rem 0.75rem; color: inherit; text-decoration: none; }
    a:hover { text-decoration: underline; }
    a:focus { outline: 2px solid Highlight; outline-offset: -2px; }
    strong { color: LinkText; font-weight: 600; }
    span { display: block; font-size: 0.875rem; }
    p { margin: 0; padding: 0.5rem 0.75rem; font-size: 0.875rem; }
    mark { background: none; color: inherit; font-weight: 600; }
  `);

  document.querySelectorAll(selector).forEach(attach);

  function attach(input) {
    const host = document.createElement("perennial-search-box");
    const root = host.attachShadow({ mode: "open" });
    root.adoptedStyleSheets = [style];
    const panel = element("div", { role: "region", ariaLabel: "Search results", hidden: true });
    const status = element("p", { role: "status" });
    const list = element("ul");
    panel.append(status, list);
    root.append(panel);
    input.after(host);
    input.autocomplete = "off";
    let timer = 0;
    let pending = new AbortController();

    input.addEventListener("input", () => {
      forget();
      if (input.value.trim().length < 2) close();
      else timer = setTimeout(search, pause);
    });
    input.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "Enter" && input.value.trim()) {
        event.preventDefault();
        location.assign(resultsUrl());
      } else if (event.key === "ArrowDown" && !panel.hidden) {
        event.preventDefault();
        links()[0]?.focus();
      } else if (event.key === "Escape") close();
    });
    panel.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") {
        input.focus();
        close();
      } else if (step) {
        event.preventDefault();
        (links()[links().indexOf(root.activeElement) + step] ?? input).focus();
      }
    });
    for (const part of [input, host]) part.addEventListener("focusout", closeIfLeft);
    addEventListener("resize", place);

    function closeIfLeft(event) {
      const to = event.relatedTarget;
      if (to !== input && to !== host) {
        forget();
        // Pressing a link takes the focus from the input before the click arrives.
        setTimeout(() => document.activeElement !== host && document.activeElement !== input && close(), 200);
      }
    }

    function links() {
      return [...root.querySelectorAll("a")];
    }

    function parameters() {
      return new URLSearchParams([...(domain ? [["domain", domain]] : []), ["q", input.value]]);
    }

    function resultsUrl() {
      const sites = domain.split(",").filter((site) => site.trim());
      return `${server}/?${new URLSearchParams([...sites.map((site) => ["domain", site.trim()]), ["q", input.value]])}`;
    }

    function forget() {
      clearTimeout(timer);
      pending.abort();
    }

    async function search() {
      pending = new AbortController();
      const { signal } = pending;
      try {
        const answer = await fetch(`${server}/api/v1/search?${parameters()}&limit=${most}`, {
          signal,
          credentials: "omit",
          referrerPolicy: "no-referrer",
        });
        const found = answer.ok ? await answer.json() : null;
        if (!signal.aborted) show(found);
      } catch {
        if (!signal.aborted) close();
      }
    }

    function show(found) {
      if (!found) {
        close();
        return;
      }
      const number = found.capped ? `More than ${found.total} pages` : found.total === 1 ? "1 page" : `${found.total} pages`;
      const words = found.corrected ? ` for “${found.corrected}”` : "";
      status.textContent = found.total ? `${number}${words}` : "No page found";
      const items = found.hits.filter((hit) => /^https?:/i.test(hit.url)).map(item);
      if (found.total > found.hits.length) items.push(wrapped(link(resultsUrl(), element("strong", "All results"))));
      list.replaceChildren(...items);
      panel.hidden = false;
      place();
    }

    function item(hit) {
      const title = element("strong", hit.title || hit.path);
      if (hit.opens_at) title.append(` › ${hit.opens_at.heading}`);
      const text = element("span");
      const characters = Array.from(hit.snippet); // The ranges count code points.
      let at = 0;
      for (const [start, end] of hit.marks) {
        text.append(characters.slice(at, start).join(""), element("mark", characters.slice(start, end).join("")));
        at = end;
      }
      text.append(characters.slice(at).join(""));
      const made = link(hit.opens_at?.url ?? hit.url, title, text);
      if (hit.lang) made.lang = hit.lang;
      made.dir = "auto";
      return wrapped(made);
    }

    function place() {
      if (panel.hidden) return;
      host.style.setProperty("--width", `${input.offsetWidth}px`);
      // Measured from where the panel would be at 0, 0: its containing block may be any element of the site.
      host.style.setProperty("--left", "0px");
      host.style.setProperty("--top", "0px");
      const box = input.getBoundingClientRect();
      const zero = host.getBoundingClientRect();
      const left = Math.max(8, Math.min(box.left, document.documentElement.clientWidth - zero.width - 8));
      host.style.setProperty("--left", `${left - zero.left}px`);
      host.style.setProperty("--top", `${box.bottom + 4 - zero.top}px`);
    }

    function close() {
      panel.hidden = true;
      list.replaceChildren();
      status.textContent = "";
    }
  }

  function element(name, content = {}) {
    const made = document.createElement(name);
    return typeof content === "string" ? (made.append(content), made) : Object.assign(made, content);
  }

  function link(url, ...content) {
    const made = element("a", { href: url, rel: "noreferrer" });
    made.append(...content);
    return made;
  }

  function wrapped(content) {
    const made = element("li");
    made.append(content);
    return made;
  }
})();
