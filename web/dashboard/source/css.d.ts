/** Style sheets: esbuild takes them into dashboard.css. */
declare module "*.css";
