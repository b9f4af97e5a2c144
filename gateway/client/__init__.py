"""A client of OpenFaaS's REST API, and where a state folder's gateway listens."""
