"""Images are deferred by `headrace.deferred`."""

raise ImportError(
    "headrace.lazy is gone: in worker processes Pillow's own images are deferred, and have no class of their"
    " own. For your own process call headrace.deferred.install() in place of headrace.lazy.install() and"
    " headrace.lazy.open()."
)
