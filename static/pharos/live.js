// Times in the reader's zone; and on pages that ask for it, parts that are fetched anew every few seconds.
"use strict";
(() => {
  const two = (n) => String(n).padStart(2, "0");

  function localTimes(root) {
    for (const time of root.querySelectorAll("time[datetime]")) {
      const at = new Date(time.dateTime);
      if (Number.isNaN(at.getTime())) continue;
      const date = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
      const clock = `${two(at.getHours())}:${two(at.getMinutes())}`;
      time.textContent = "date" in time.dataset ? `${date} ${clock}` : `${clock}:${two(at.getSeconds())}`;
    }
  }

  function sayZone(root) {
    const said = root.querySelector("[data-zone]");
    const mine = Intl.DateTimeFormat().resolvedOptions().timeZone;
    if (said && mine) said.textContent = `times in ${mine}` + (mine === said.dataset.zone ? "" : `, days in ${said.dataset.zone}`);
  }

  // What somebody has opened, focused or selected stays as it is.
  function swap(old, fresh) {
    if (old.innerHTML === fresh.innerHTML || old.dataset.shown === fresh.innerHTML) return;
    const selection = document.getSelection();
    if (selection && !selection.isCollapsed && old.contains(selection.anchorNode)) return;
    const shown = fresh.innerHTML;
    const open = [...old.querySelectorAll("details[open][id]")].map((d) => d.id);
    const scrolled = [...old.querySelectorAll(".scroll")].map((s) => s.scrollLeft);
    const focused = old.contains(document.activeElement) ? path(old, document.activeElement) : null;
    localTimes(fresh);
    for (const details of fresh.querySelectorAll("details[id]")) details.open = open.includes(details.id);
    old.replaceChildren(...fresh.childNodes);
    old.dataset.shown = shown;
    old.querySelectorAll(".scroll").forEach((s, i) => { s.scrollLeft = scrolled[i] || 0; });
    if (focused) focused(old)?.focus({ preventScroll: true });
  }

  // The same place in the new part: by the details it is the summary of, else by its position.
  function path(root, element) {
    const details = element.closest("details[id]");
    if (details && element.tagName === "SUMMARY") {
      return () => document.getElementById(details.id)?.querySelector("summary");
    }
    const kind = element.tagName.toLowerCase();
    const at = [...root.querySelectorAll(kind)].indexOf(element);
    return (fresh) => fresh.querySelectorAll(kind)[at];
  }

  function keepFresh(fresh) {
    let paused = false, busy = false;
    const pause = document.createElement("button");
    pause.type = "button";
    pause.textContent = "Pause";
    pause.addEventListener("click", () => {
      paused = !paused;
      pause.textContent = paused ? "Go on" : "Pause";
      if (!paused) refresh();
    });
    const asOf = fresh.querySelector("time");
    fresh.querySelector("a")?.remove();
    fresh.append(pause);
    const trouble = document.createElement("span");
    trouble.setAttribute("role", "status");
    fresh.append(trouble);

    async function refresh() {
      if (paused || busy || document.hidden) return;
      busy = true;
      try {
        const reply = await fetch(location.href, { headers: { Accept: "text/html" }, cache: "no-store" });
        if (reply.redirected || reply.status === 401 || reply.status === 403) { location.reload(); return; }
        if (!reply.ok) throw new Error(String(reply.status));
        const page = new DOMParser().parseFromString(await reply.text(), "text/html");
        for (const part of page.querySelectorAll("[data-part]")) {
          const old = document.getElementById(part.id);
          if (old) swap(old, part);
        }
        const time = page.querySelector("#fresh time");
        if (time && asOf) { asOf.dateTime = time.dateTime; asOf.title = time.title; localTimes(asOf.parentElement); }
        trouble.textContent = "";
      } catch {
        trouble.textContent = " Pharos does not answer: this is what it said last.";
      } finally {
        busy = false;
      }
    }
    setInterval(refresh, Number(fresh.dataset.refresh) * 1000);
    document.addEventListener("visibilitychange", refresh);
  }

  localTimes(document);
  sayZone(document);
  const fresh = document.getElementById("fresh");
  if (fresh) keepFresh(fresh);
})();
