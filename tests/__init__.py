from idiolect.__main__ import threads_sleep_soon

threads_sleep_soon()  # before PyTorch is imported: tests run side by side, some with two threads
