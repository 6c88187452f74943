"""A tree of files declared in Python, the wire it travels over, and its FUSE mount.

Imported as ``midrun.fs``. It knows nothing of torch, of Lightning or of what a command does. The process that has the
tree is called the *trainer* here: it has other things to do, and must never be kept waiting.
"""

if __name__ != "midrun.fs":
    # The directory lies at the top of the repository, so Python started there would make a second copy of every
    # module (and other packages that look for PyPI's "fs" would find this one).
    raise ImportError(
        f"this directory is the package 'midrun.fs', but it was imported as {__name__!r}: write 'import midrun.fs'"
    )
