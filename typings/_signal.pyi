from signal import SIGINT as SIGINT
from signal import signal as signal
