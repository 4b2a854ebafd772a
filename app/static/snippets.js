// The request as code that can be pasted.

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

const writers = {
  curl: (url, name, type) => `curl -H ${quoted(`Content-Type: ${type}`)} --data-binary @${quoted(name)} ${quoted(url)}`,
  python: (url, name, type) => [
    "import httpx",
    "",
    `with open(${JSON.stringify(name)}, "rb") as file:`,
    `    answer = httpx.post(${JSON.stringify(url)}, content=file.read(), headers={"Content-Type": ${JSON.stringify(type)}})`,
    "answer.raise_for_status()",
    'print(answer.json()["result"]["kind"])',
  ].join("\n"),
  fetch: (url, name, type) => [
    `// file: a File or Blob, for example document.querySelector("input[type=file]").files[0]`,
    `const answer = await fetch(${JSON.stringify(url)}, {`,
    `  method: "POST", body: file, headers: { "Content-Type": ${JSON.stringify(type)} },`,
    "});",
    "console.log((await answer.json()).result);",
  ].join("\n"),
};

// `language` is one of curl, python and fetch.
export function snippet(language, url, name, type) {
  return writers[language](url, name, type);
}
