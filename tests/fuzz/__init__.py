"""Bad input of every kind, made by the thousand: nothing may end in a traceback or a hang."""
