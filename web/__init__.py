"""A tree of files over HTTP: the REST API, its OpenAPI description and the dashboard.

Imported as ``midrun.web``. It knows nothing of torch, of Lightning or of training; it only reads ``midrun.fs``.
"""

if __name__ != "midrun.web":
    # The directory lies at the top of the repository, so Python started there would make a second copy of every module.
    raise ImportError(
        f"this directory is the package 'midrun.web', but it was imported as {__name__!r}: write 'import midrun.web'"
    )
