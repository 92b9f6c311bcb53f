"""The gateway put together: the ASGI app with all its routes, the page at `/`, and the uvicorn server that runs it.

Does not belong here: how one request is handled (`proxy/`), and flags (`options`).
"""
