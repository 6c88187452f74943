"""A tree of files over HTTP: the REST API, its OpenAPI description and the dashboard.

Imported as ``midrun.web``. It imports nothing of midrun's but ``midrun.fs``, and neither torch nor Lightning. Of a run
it knows paths of the tree: short routes are named after them, and the dashboard has panels and buttons for some.
"""

if __name__ != "midrun.web":
    # The directory lies at the top of the repository, so Python started there would make a second copy of every module.
    raise ImportError(
        f"this directory is the package 'midrun.web', but it was imported as {__name__!r}: write 'import midrun.web'"
    )
