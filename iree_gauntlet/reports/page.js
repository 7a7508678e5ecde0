// Commands can be copied where the browser lets a page do that.
for (const block of navigator.clipboard ? document.querySelectorAll("pre.command") : []) {
  const button = document.createElement("button");
  button.textContent = "copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(block.querySelector("code").textContent);
    button.textContent = "copied";
    setTimeout(() => { button.textContent = "copy"; }, 2000);
  });
  block.append(button);
}
// The keyboard stops at a part only where the part scrolls.
const scrolling = new ResizeObserver((entries) => entries.forEach(({ target }) =>
  target.toggleAttribute("tabindex", target.scrollWidth > target.clientWidth) && target.setAttribute("tabindex", "0")));
document.querySelectorAll(".wide, pre, figure:not([data-chart])").forEach((part) => scrolling.observe(part));
