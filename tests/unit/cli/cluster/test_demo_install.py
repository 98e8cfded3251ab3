from cli.cluster.demo import should_install_demo


def test_a_first_start_installs_the_demo() -> None:
    assert should_install_demo(shipped="new", installed=None, present=None)


def test_a_file_that_the_user_had_before_stays() -> None:
    assert not should_install_demo(shipped="new", installed=None, present="own")


def test_a_demo_that_the_user_deleted_stays_deleted() -> None:
    assert not should_install_demo(shipped="new", installed="new", present=None)
    assert not should_install_demo(shipped="new", installed="old", present=None)


def test_an_untouched_old_demo_is_brought_up_to_date() -> None:
    assert should_install_demo(shipped="new", installed="old", present="old")


def test_a_demo_that_the_user_replaced_stays() -> None:
    assert not should_install_demo(shipped="new", installed="old", present="own")


def test_an_installed_demo_is_not_installed_again() -> None:
    assert not should_install_demo(shipped="new", installed="new", present="new")
