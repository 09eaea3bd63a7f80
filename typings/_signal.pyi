from signal import SIG_IGN as SIG_IGN
from signal import SIGINT as SIGINT
from signal import getsignal as getsignal
from signal import signal as signal
