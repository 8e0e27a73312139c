"""When a host of the lab is up."""

from __future__ import annotations

from deploy.lab.hosts import starts_brokers_alone

BROKER = "67  georelay-broker.service              start running\n"
WAITING = "2   multi-user.target                    start waiting\n1 graphical.target start waiting\n"


def test_a_host_is_up_when_only_its_broker_starts_which_waits_for_the_others_of_its_region() -> None:
    assert starts_brokers_alone(WAITING + BROKER)


def test_a_host_is_not_up_while_debian_starts_or_nothing_is_known() -> None:
    assert not starts_brokers_alone(WAITING + BROKER + "9 systemd-tmpfiles-setup.service start running\n")
    assert not starts_brokers_alone(WAITING)
    assert not starts_brokers_alone("")
