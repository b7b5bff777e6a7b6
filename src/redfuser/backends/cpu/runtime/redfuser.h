#pragma once
#include "dots.h"
#include "lists.h"
#include "team.h"
