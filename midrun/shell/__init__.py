"""Shell hooks: scripts in the run directory that run at Lightning's callbacks, enabled with `chmod +x`."""
