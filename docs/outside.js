// The book has the pages of docs/ only. A link to another file of the source tree would lead nowhere: its text stays,
// and the file's name is shown beside it.
(function () {
  const book = new URL(path_to_root || ".", document.baseURI).href;
  const tree = new URL("..", book).href;
  for (const link of document.querySelectorAll("main a[href]")) {
    if (link.protocol !== location.protocol || link.host !== location.host || link.href.startsWith(book)) continue;
    const file = document.createElement("code");
    file.textContent = decodeURI(link.href.replace(tree, "")).replace(/\.html(#.*)?$/, ".md");
    const text = document.createElement("span");
    text.append(...link.childNodes, " (", file, ")");
    link.replaceWith(text);
  }
})();
