from idiolect.core.text import command_typed, reason


def test_a_command_is_told_without_the_folders_of_a_machine() -> None:
    typed = "idiolect bench nets --out …/nets.json"
    for program in ("/home/a/src/idiolect/__main__.py", "/usr/bin/idiolect", "idiolect"):
        assert command_typed(f"{program} bench nets --out /home/a/nets.json") == typed
    assert command_typed("idiolect run x --data=/home/a/b.csv") == "idiolect run x --data=…/b.csv"


def test_a_reason_names_types_in_words() -> None:
    assert (
        reason(TypeError("<class 'numpy.dtypes.Int64DType'> is no text")) == "Int64DType is no text"
    )
