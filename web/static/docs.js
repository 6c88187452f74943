// Swagger UI over this server's own OpenAPI document. It asks no other host for anything.
"use strict";

document.documentElement.classList.toggle("dark-mode", matchMedia("(prefers-color-scheme: dark)").matches);

window.ui = SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#api",
  tryItOutEnabled: true,
  validatorUrl: null,
  // A path of the tree has slashes of its own. Swagger UI encodes them as if they were one name's.
  requestInterceptor: (request) => {
    const [address, query] = request.url.split(/(?=\?)/, 2);
    request.url = address.replace(/(?<=\/files\/.*)%2F/gi, "/") + (query ?? "");
    return request;
  },
});
