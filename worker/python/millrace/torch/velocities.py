"""Saved states of a job with option momentum or clip: residual and velocity.

A push would give the saved residual momentum once more, or clip it. So the session takes both back unchanged
(Session.restore()).
"""

from ..updates import NO_ENTRIES
from .residuals import dense_of, entries_of


def read(session, places):
    """Returns copies of the residuals and of the velocities; the session keeps both.

    places   {name: (tensor, entries)}.
    Returns  ({name: f32 tensor [entries]}, the same of velocities).
    """
    residuals, velocities = {}, {}
    for name, (tensor, entries) in places.items():
        residual, velocity = session.take_residual(tensor), session.take_velocity(tensor)
        session.restore(tensor, residual, velocity)
        residuals[name], velocities[name] = dense_of(*residual, entries), dense_of(*velocity, entries)
    return residuals, velocities


def replace(session, places, residuals, velocities):
    """Replaces the session's residuals and velocities."""
    for name, (tensor, _) in places.items():
        session.take_residual(tensor)
        session.take_velocity(tensor)
        session.restore(tensor, entries_of(residuals[name]), entries_of(velocities[name]) if velocities else NO_ENTRIES)
