// Light or dark: as the system says until a choice is made here; the choice is kept in this browser.

const NAME = "puna.theme";
const system = matchMedia("(prefers-color-scheme: dark)");

export function startTheme(button) {
  const show = () => {
    const chosen = localStorage.getItem(NAME);
    const dark = chosen ? chosen === "dark" : system.matches;
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    button.setAttribute("aria-pressed", String(dark));
  };
  button.addEventListener("click", () => {
    localStorage.setItem(NAME, document.documentElement.dataset.theme === "dark" ? "light" : "dark");
    show();
  });
  system.addEventListener("change", show);
  show();
}
