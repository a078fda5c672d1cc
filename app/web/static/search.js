// Two conveniences of the search page: a key that focuses the search box, and suggestions while a person types.
// Clicks are counted where the site wants it. The page works without all of them.
"use strict";

(() => {
  clicks();

  // Report which result was opened, without anything about the person, for the results of sites that count clicks.
  function clicks() {
    const q = new URLSearchParams(location.search).get("q");
    const report = (event) => {
      const link = event.button <= 1 && event.target.closest("[data-domain] a[href]");
      if (!link) return;
      const { domain } = link.closest("[data-domain]").dataset;
      navigator.sendBeacon(`/clicks?${new URLSearchParams({ domain, q, url: link.href })}`);
    };
    document.addEventListener("click", report);
    document.addEventListener("auxclick", report);
  }

  const input = document.getElementById("q");
  if (!input) return;
  const form = input.form;

  const element = (name, properties) => Object.assign(document.createElement(name), properties);

  shortcut();
  suggestions();

  // The key "/" focuses the search box. Speech input can press keys by accident, so the shortcut can be turned off
  // (WCAG 2.1.4).
  function shortcut() {
    const stored = "perennial.slash";
    let on = remembered() !== "off";
    const hint = element("kbd", { className: "key", textContent: "/", ariaHidden: "true" });
    const toggle = element("button", { type: "button" });
    const explanation = element("span", { className: "shortcut", textContent: " The key / moves to the search box. " });
    explanation.append(toggle);
    input.after(hint);
    document.querySelector(".hint")?.append(explanation);
    toggle.addEventListener("click", () => {
      on = !on;
      remember(on ? "on" : "off");
      show();
    });
    document.addEventListener("keydown", (event) => {
      // In an empty box, or over selected text, the key is pressed out of habit, not to type a slash.
      const habit = event.target === input && input.selectionEnd - input.selectionStart === input.value.length;
      const typing = !habit && event.target.closest?.("input:not([type=checkbox]), textarea, select, [contenteditable]");
      if (!on || event.key !== "/" || typing || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      input.focus();
      input.select();
    });
    show();

    function show() {
      hint.hidden = !on;
      toggle.textContent = `Turn the key ${on ? "off" : "on"}`;
      if (on) input.setAttribute("aria-keyshortcuts", "/");
      else input.removeAttribute("aria-keyshortcuts");
    }

    // A browser may store nothing, or refuse access.
    function remembered() {
      try {
        return localStorage.getItem(stored);
      } catch {
        return null;
      }
    }

    function remember(value) {
      try {
        localStorage.setItem(stored, value);
      } catch {
        // The setting lasts until the next page.
      }
    }
  }

  // Suggestions: the combobox of the ARIA Authoring Practices, with a list box and manual selection.
  function suggestions() {
    const mostWithPages = 4; // Queries that are suggested besides pages.
    const pause = 120; // Milliseconds without a keystroke before the request.
    const list = element("ul", { id: "suggestions", className: "suggestions", role: "listbox", hidden: true });
    const announcement = element("p", { className: "unseen", role: "status" });
    let typed = input.value;
    let active = -1;
    let timer = 0;
    let pending = new AbortController();

    list.setAttribute("aria-label", "Suggestions");
    for (const [name, value] of Object.entries({
      role: "combobox",
      "aria-autocomplete": "list",
      "aria-expanded": "false",
      "aria-controls": list.id,
    })) {
      input.setAttribute(name, value);
    }
    input.parentElement.append(list, announcement);

    input.addEventListener("input", () => {
      typed = input.value;
      forget();
      if (!typed.trim()) close();
      else timer = setTimeout(ask, pause);
    });
    input.addEventListener("keydown", onKey);
    input.addEventListener("blur", () => {
      forget();
      close();
    });
    form.addEventListener("submit", forget);
    // Pressing a suggestion must not take the focus from the box: the blur would close the list before the click.
    list.addEventListener("pointerdown", (event) => event.preventDefault());
    list.addEventListener("mousedown", (event) => event.preventDefault());
    list.addEventListener("click", (event) => {
      const option = event.target.closest("[role=option]");
      if (option) choose(option);
    });

    function choose(option) {
      const { url } = option.dataset;
      if (!url) input.value = option.textContent;
      close();
      if (url) location.assign(url);
      else form.requestSubmit();
    }

    function onKey(event) {
      if (event.isComposing || event.ctrlKey || event.metaKey) return;
      if (event.key === "Escape") {
        event.preventDefault(); // Some browsers would clear the box.
        if (list.hidden) input.blur();
        else {
          input.value = typed;
          close();
        }
      } else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && !event.altKey) {
        if (list.hidden) return;
        event.preventDefault();
        move(event.key === "ArrowDown" ? 1 : -1);
      } else if (event.key === "Enter" && options()[active]?.dataset.url) {
        event.preventDefault();
        choose(options()[active]);
      }
    }

    function forget() {
      clearTimeout(timer);
      pending.abort();
    }

    async function ask() {
      pending = new AbortController();
      const { signal } = pending;
      const sites = new FormData(form).getAll("domain");
      const parameters = new URLSearchParams(sites.map((site) => ["domain", site]));
      parameters.append("q", typed);
      parameters.append("pages", "1");
      try {
        const answer = await fetch(`/suggest?${parameters}`, { signal });
        // A failed request is not reported: the search itself will show the problem.
        const [, texts = [], , , pages = []] = answer.ok ? await answer.json() : [];
        if (!signal.aborted) show(texts, pages);
      } catch {
        if (!signal.aborted) close();
      }
    }

    function show(texts, pages) {
      if (!texts.length && !pages.length) {
        close();
        return;
      }
      active = -1;
      input.removeAttribute("aria-activedescendant");
      // A name that leads to a suggested page is not suggested as a query as well.
      const names = new Set(pages.flatMap(({ title, heading }) => [title, heading, lastPart(heading)]));
      const queries = texts.filter((text) => !names.has(text)).slice(0, pages.length ? mostWithPages : undefined);
      const words = queries.map((text) => element("li", { role: "option", dir: "auto", textContent: text }));
      list.replaceChildren(...words, ...pages.map(pageOption));
      options().forEach((option, at) => {
        option.id = `suggestion-${at}`;
        option.setAttribute("aria-selected", "false");
      });
      list.hidden = false;
      input.setAttribute("aria-expanded", "true");
      const number = options().length;
      announcement.textContent = number === 1 ? "1 suggestion" : `${number} suggestions`;
    }

    // `OrderedDict` of `collections.OrderedDict()`.
    function lastPart(name) {
      return name.replace(/ ?\(\)$/, "").split(/[.:#]/).pop();
    }

    // A page: choosing it opens the page instead of searching.
    function pageOption({ url, title, heading }) {
      const option = element("li", { role: "option", dir: "auto", className: "page" });
      option.append(element("span", { className: "unseen", textContent: "Page: " }), title);
      if (heading) option.append(element("span", { className: "heading", textContent: ` › ${heading}` }));
      option.dataset.url = url;
      return option;
    }

    function options() {
      return list.querySelectorAll("[role=option]");
    }

    function close() {
      list.hidden = true;
      list.replaceChildren();
      active = -1;
      input.setAttribute("aria-expanded", "false");
      input.removeAttribute("aria-activedescendant");
      announcement.textContent = "";
    }

    // Past either end of the list the typed text comes back.
    function move(step) {
      const all = options();
      all[active]?.setAttribute("aria-selected", "false");
      active = ((active + 1 + step + all.length + 1) % (all.length + 1)) - 1;
      const option = all[active];
      input.value = option && !option.dataset.url ? option.textContent : typed;
      if (option) {
        option.setAttribute("aria-selected", "true");
        option.scrollIntoView({ block: "nearest" });
        input.setAttribute("aria-activedescendant", option.id);
      } else {
        input.removeAttribute("aria-activedescendant");
      }
    }
  }
})();
