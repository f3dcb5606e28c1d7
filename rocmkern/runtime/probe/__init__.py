"""Looking at GPUs before anything uses them.

``driver`` asks a driver in a child process (``child``), ``status`` says what that means for this process, ``suspect``
knows the devices on which work hung, and ``exercise`` lets one of them work again.
"""
