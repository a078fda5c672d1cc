// Two conveniences of the search page: a key that focuses the search box, and suggestions while a person types.
// The page works without them.
"use strict";

(() => {
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
    const line = element("p", { className: "shortcut" });
    line.append(toggle);
    input.after(hint);
    document.querySelector("footer").append(line);
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
      toggle.textContent = `Turn ${on ? "off" : "on"} the shortcut key /`;
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
      if (!option) return;
      input.value = option.textContent;
      close();
      form.requestSubmit();
    });

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
      try {
        const answer = await fetch(`/suggest?${parameters}`, { signal });
        // A failed request is not reported: the search itself will show the problem.
        const found = answer.ok ? (await answer.json())[1] : [];
        if (!signal.aborted) show(found);
      } catch {
        if (!signal.aborted) close();
      }
    }

    function show(texts) {
      if (!texts.length) {
        close();
        return;
      }
      active = -1;
      input.removeAttribute("aria-activedescendant");
      list.replaceChildren(
        ...texts.map((text, at) => {
          const option = element("li", { id: `suggestion-${at}`, role: "option", dir: "auto", textContent: text });
          option.setAttribute("aria-selected", "false");
          return option;
        }),
      );
      list.hidden = false;
      input.setAttribute("aria-expanded", "true");
      announcement.textContent = texts.length === 1 ? "1 suggestion" : `${texts.length} suggestions`;
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
      const options = list.children;
      options[active]?.setAttribute("aria-selected", "false");
      active = ((active + 1 + step + options.length + 1) % (options.length + 1)) - 1;
      const option = options[active];
      input.value = option ? option.textContent : typed;
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
