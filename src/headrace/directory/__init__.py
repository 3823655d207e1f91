"""The directory of tenants: who there is, with which password, and what each may do, in a SQL database.

Nothing of the broker imports this unless a directory is configured: SQLAlchemy comes with the extra `directory`.
"""
